// Ranks as threads of one process: a test of a program's collectives that needs no launcher. The class that is tested
// exchanges tensors as 16-bit floats.
//
//   ./ranks_as_threads [fp16 | bfp16]
#include <arpa/inet.h>
#include <narrowcast/auto_quantize.h>
#include <narrowcast/narrowcast.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <torch/types.h>
#include <unistd.h>

#include <cstdint>
#include <exception>
#include <future>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

namespace {

constexpr int64_t kRanks = 3;

// The class under test.
class Exchange {
 public:
  Exchange(narrowcast::ProcessGroupPtr group, narrowcast::DQuantType qtype)
      : group_(std::move(group)),
        gather_(narrowcast::auto_quantize(narrowcast::collectives::all_gather, qtype)),
        swap_(narrowcast::auto_quantize(narrowcast::collectives::all_to_all, qtype)),
        swap_rows_(narrowcast::auto_quantize(narrowcast::collectives::all_to_all_single, qtype)) {}

  // Every rank's tensor, by rank.
  std::vector<at::Tensor> gather(const at::Tensor& own) const {
    std::vector<at::Tensor> all = like(own);
    gather_(all, own, group_);
    return all;
  }

  // `parts` has a tensor for each rank; returns the tensors that the ranks have for this one.
  std::vector<at::Tensor> swap(const std::vector<at::Tensor>& parts) const {
    std::vector<at::Tensor> received = like(parts[0]);
    swap_(received, parts, group_);
    return received;
  }

  // The same with the rows of a matrix, an equal number for each rank.
  at::Tensor swap_rows(const at::Tensor& rows) const {
    at::Tensor received = at::empty_like(rows);
    swap_rows_(received, rows, group_);
    return received;
  }

 private:
  std::vector<at::Tensor> like(const at::Tensor& tensor) const {
    std::vector<at::Tensor> tensors;
    for (int rank = 0; rank < group_->getSize(); ++rank) {
      tensors.push_back(at::empty_like(tensor));
    }
    return tensors;
  }

  narrowcast::ProcessGroupPtr group_;
  narrowcast::AutoQuantizedAllGather gather_;
  narrowcast::AutoQuantizedAllToAll swap_;
  narrowcast::AutoQuantizedAllToAllSingle swap_rows_;
};

// A free TCP port of this machine.
int64_t free_port() {
  const int descriptor = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  TORCH_CHECK(descriptor >= 0 && bind(descriptor, any, size) == 0 && getsockname(descriptor, any, &size) == 0,
              "no free port");
  close(descriptor);
  return ntohs(address.sin_port);
}

// What the test checks on one rank.
void check(const Exchange& exchange, int64_t rank) {
  const double number = static_cast<double>(rank);
  const std::vector<at::Tensor> gathered = exchange.gather(at::full({2}, number));
  TORCH_CHECK(at::equal(gathered[kRanks - 1], at::full({2}, static_cast<double>(kRanks - 1))), "gather is wrong");

  std::vector<at::Tensor> parts;
  for (int64_t to = 0; to < kRanks; ++to) {
    parts.push_back(at::full({2}, 10 * number + static_cast<double>(to)));
  }
  TORCH_CHECK(at::equal(exchange.swap(parts)[1], at::full({2}, 10 + number)), "swap is wrong");
  TORCH_CHECK(at::equal(exchange.swap_rows(at::stack(parts))[1], at::full({2}, 10 + number)), "swap_rows is wrong");
}

// The body of a thread. A launcher would set these variables in the environment of a process.
void run_rank(int64_t rank, int64_t port, narrowcast::DQuantType qtype) {
  const auto env = narrowcast::WorkerEnv::from_variables({{"RANK", std::to_string(rank)},
                                                          {"WORLD_SIZE", std::to_string(kRanks)},
                                                          {"MASTER_ADDR", "127.0.0.1"},
                                                          {"MASTER_PORT", std::to_string(port)}});
  const std::string name = "rank " + std::to_string(rank);  // A process registers each name once.
  narrowcast::ProcessGroupPtr group = narrowcast::init_process_group(env, {.group_name = name});
  check(Exchange(group, qtype), rank);
  narrowcast::barrier(group, "waiting for the last rank");
  narrowcast::shutdown_process_group(name);  // ProcessGroupScope does it at its end, also after an exception.
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const narrowcast::DQuantType qtype = narrowcast::parse_dquant_type(argc > 1 ? argv[1] : "fp16");
    const int64_t port = free_port();
    std::vector<std::future<void>> ranks;
    for (int64_t rank = 0; rank < kRanks; ++rank) {
      ranks.push_back(std::async(std::launch::async, &run_rank, rank, port, qtype));
    }
    for (std::future<void>& rank : ranks) {
      rank.get();  // Throws the rank's exception.
    }
    std::cout << kRanks << " ranks have exchanged tensors as " << qtype << '\n';
  } catch (const c10::Error& error) {
    std::cerr << error.what_without_backtrace() << '\n';
    return 1;
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
