#include "ops/collectives/auto_quantize/agreement.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <exception>

#include "ops/error_message.h"
#include "ops/libtorch_versions.h"

namespace narrowcast::collectives {
namespace {

// One rank's record, as it travels: collective, qtype, sends[W], receives[W].
class Record {
 public:
  static constexpr int64_t kHead = 2;
  static int64_t size(int64_t world_size) { return kHead + 2 * world_size; }

  Record(const int64_t* values, int64_t world_size) : values_(values), world_size_(world_size) {}

  Collective collective() const { return static_cast<Collective>(values_[0]); }
  DQuantType qtype() const { return static_cast<DQuantType>(values_[1]); }
  int64_t sends(int64_t rank) const { return values_[kHead + rank]; }
  int64_t receives(int64_t rank) const { return values_[kHead + world_size_ + rank]; }

 private:
  const int64_t* values_;
  int64_t world_size_;
};

at::Tensor write_record(const Exchange& exchange) {
  const auto world_size = static_cast<int64_t>(exchange.sends.size());
  at::Tensor record = at::empty({Record::size(world_size)}, at::kLong);
  auto* values = record.mutable_data_ptr<int64_t>();
  *values++ = static_cast<int64_t>(exchange.collective);
  *values++ = static_cast<int64_t>(exchange.encoding.qtype);
  values = std::copy(exchange.sends.begin(), exchange.sends.end(), values);
  std::copy(exchange.receives.begin(), exchange.receives.end(), values);
  return record;
}

bool has_cpu_backend(c10d::ProcessGroup& group) {
  const auto devices = group.getDeviceTypes();
  return std::any_of(devices.begin(), devices.end(), [](const at::Device& device) { return device.is_cpu(); });
}

// All ranks' records, [W * Record::size(W)] int64 on the CPU.
at::Tensor gather_records(const Exchange& exchange) {
  const at::Device device = has_cpu_backend(*exchange.group) ? at::Device(at::kCPU) : exchange.sources[0].device();
  at::Tensor own = write_record(exchange).to(device);
  at::Tensor all = at::empty({exchange.group->getSize() * own.numel()}, own.options());
  wait_for(*libtorch::all_gather_single(exchange.group, all, own), exchange);
  return all.cpu();
}

// Rank 0's call is the one that the others are compared with.
void check_same_call(const std::vector<Record>& records) {
  for (size_t rank = 1; rank < records.size(); ++rank) {
    TORCH_CHECK_VALUE(records[rank].collective() == records[0].collective(), "rank ", rank, " calls ",
                      operator_name(records[rank].collective()), " but rank 0 calls ",
                      operator_name(records[0].collective()));
    TORCH_CHECK_VALUE(records[rank].qtype() == records[0].qtype(), operator_name(records[0].collective()),
                      ": qtype is ", records[rank].qtype(), " on rank ", rank, " but ", records[0].qtype(),
                      " on rank 0");
  }
}

// What rank `receiver` calls the room for the run of `sender`.
std::string room_name(Collective collective, int64_t sender) {
  if (collective == Collective::kAllToAllSingle) {
    return "output has room for";
  }
  return c10::str("outputs[", sender, "] has");
}

void check_runs_fit(const std::vector<Record>& records) {
  const auto world_size = static_cast<int64_t>(records.size());
  const Collective collective = records[0].collective();
  for (int64_t sender = 0; sender < world_size; ++sender) {
    for (int64_t receiver = 0; receiver < world_size; ++receiver) {
      const int64_t run = records[sender].sends(receiver);
      const int64_t room = records[receiver].receives(sender);
      TORCH_CHECK_VALUE(run == room, operator_name(collective), ": rank ", sender, " sends ", run, " elements to rank ",
                        receiver, ", whose ", room_name(collective, sender), " ", room);
    }
  }
}

int64_t longest_run(const std::vector<Record>& records) {
  int64_t longest = 0;
  for (const Record& record : records) {
    for (size_t rank = 0; rank < records.size(); ++rank) {
      longest = std::max(longest, record.sends(static_cast<int64_t>(rank)));
    }
  }
  return longest;
}

}  // namespace

int64_t agree(const Exchange& exchange) {
  const auto world_size = static_cast<int64_t>(exchange.sends.size());
  const at::Tensor gathered = gather_records(exchange);
  std::vector<Record> records;
  for (int64_t rank = 0; rank < world_size; ++rank) {
    records.emplace_back(gathered.const_data_ptr<int64_t>() + rank * Record::size(world_size), world_size);
  }
  check_same_call(records);
  check_runs_fit(records);
  return longest_run(records);
}

void throw_backend_error(const std::exception_ptr& failure, const Exchange& exchange) {
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    TORCH_CHECK_WITH(DistBackendError, false, "rank ", exchange.rank, ": ", operator_name(exchange.collective),
                     " failed: ", error_message(error));
  }
}

void wait_for(c10d::Work& work, const Exchange& exchange) {
  try {
    work.wait();
  } catch (const std::exception&) {
    throw_backend_error(std::current_exception(), exchange);
  }
}

}  // namespace narrowcast::collectives
