#include "trainer/train/bench/start_line.h"

#include <ATen/ops/zeros.h>

#include <chrono>
#include <cstdint>
#include <limits>
#include <thread>
#include <utility>
#include <vector>

#include <narrowcast/consensus.h>
#include <narrowcast/network_errors.h>
#include "ops/comm/groups/group.h"

namespace narrowcast::bench {
namespace {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;

constexpr const char* kComparing = "comparing the clocks of ranks";
constexpr int kPings = 4;
constexpr int kTag = 1;

at::Tensor message() { return at::zeros({1}, at::kDouble); }

WorkPtr receive(const ProcessGroupPtr& group, const at::Tensor& into, int64_t rank) {
  std::vector<at::Tensor> tensors{into};
  return group->recv(tensors, static_cast<int>(rank), kTag);
}

void send(const ProcessGroupPtr& group, const at::Tensor& value, int64_t rank) {
  std::vector<at::Tensor> tensors{value};
  group->send(tensors, static_cast<int>(rank), kTag)->wait();
}

// Rank 0 answers the pings of one rank after the other: it would else keep a ping while it waits for another rank's.
void answer(const ProcessGroupPtr& group, const std::function<double()>& clock) {
  for (int64_t rank = 1; rank < group->getSize(); ++rank) {
    for (int ping = 0; ping < kPings; ++ping) {
      receive(group, message(), rank)->wait();
      send(group, message().fill_(clock()), rank);
    }
  }
}

struct ClockComparison {
  double ahead = 0;
  double round_trip = 0;
};

ClockComparison ask(const ProcessGroupPtr& group, const std::function<double()>& clock) {
  ClockComparison best{.round_trip = std::numeric_limits<double>::infinity()};
  for (int ping = 0; ping < kPings; ++ping) {
    const at::Tensor answer = message();
    const WorkPtr work = receive(group, answer, 0);
    const double begin = clock();
    send(group, message(), 0);
    work->wait();
    const double end = clock();
    if (end - begin < best.round_trip) best = {answer.item<double>() - (begin + end) / 2, end - begin};
  }
  return best;
}

}  // namespace

StartLine::StartLine(const ProcessGroupPtr& group, Options options) : group_(group), options_(std::move(options)) {
  if (!collectives::moves_cpu_tensors(group)) return;
  barrier(group, kComparing);
  with_network_errors(group->getRank(), kComparing, [&] {
    if (group->getRank() == 0) {
      answer(group, options_.clock);
    } else {
      const ClockComparison found = ask(group, options_.clock);
      ahead_ = found.ahead;
      round_trip_ = found.round_trip;
    }
  });
  round_trip_ = all_reduce_max(group, {round_trip_})[0];
  is_long_ = round_trip_ >= options_.least_round_trip;
}

double StartLine::steady() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// A collective of all ranks would last as long as its chain of messages, and its ranks leave it apart. Here each rank
// tells rank 0 that it is ready, and gets the start from rank 0, which needs one flight. It posts the receive before.
double StartLine::agree() const {
  const at::Tensor start = message();
  if (group_->getRank() > 0) {
    const WorkPtr work = receive(group_, start, 0);
    send(group_, message(), 0);
    work->wait();
    return start.item<double>();
  }
  std::vector<WorkPtr> works;
  for (int64_t rank = 1; rank < group_->getSize(); ++rank) works.push_back(receive(group_, message(), rank));
  for (const WorkPtr& ready : works) ready->wait();
  start.fill_(now() + 2 * round_trip_ + options_.margin);
  works.clear();
  std::vector<at::Tensor> sent{start};
  for (int rank = 1; rank < group_->getSize(); ++rank) works.push_back(group_->send(sent, rank, kTag));
  for (const WorkPtr& told : works) told->wait();
  return start.item<double>();
}

void StartLine::wait(const std::string& what) const {
  if (!is_long_) {
    barrier(group_, what);
    return;
  }
  const double start = with_network_errors(group_->getRank(), what, [&] { return agree(); });
  std::this_thread::sleep_for(std::chrono::duration<double>(start - now()));
}

}  // namespace narrowcast::bench
