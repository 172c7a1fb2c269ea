// Whether all ranks mean the same exchange.
//
// Ranks agree here otherwise than in a quantised all-reduce (all_reduce/operator/announced_call.h), and share with it
// only how a rank refuses. Here a rank tells the sizes of 2 W segments, in one all-gather of the group, because the
// group's own collective moves the data. There a rank tells a few numbers from peer to peer on the engine, in the job
// that averages as soon as they have come.
#include "ops/collectives/auto_quantize/exchange.h"

#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <optional>

#include "ops/comm/groups/group.h"
#include "ops/common/backend_errors.h"

namespace narrowcast::collectives {
namespace {

// One rank's record, as it travels: a mark, collective, qtype, sends[W], receives[W], refusal.
class Record {
 public:
  static constexpr int64_t kMark = 0x6175746F7175616E;
  static constexpr int64_t kHead = 3;
  static constexpr int64_t kTail = kRefusalBytes / static_cast<int64_t>(sizeof(int64_t));
  static int64_t size(int64_t world_size) { return kHead + 2 * world_size + kTail; }

  Record(const int64_t* values, int64_t world_size) : values_(values), world_size_(world_size) {}

  // Whether these can be the numbers of a record: what other ranks send is looked at before it is used.
  bool is_record() const {
    const auto is_size = [](int64_t value) { return value >= 0; };
    return values_[0] == kMark && values_[1] >= 0 && values_[1] <= static_cast<int64_t>(Collective::kAllToAllSingle) &&
           values_[2] >= 0 && values_[2] <= static_cast<int64_t>(DQuantType::kBfp16) &&
           std::all_of(values_ + kHead, values_ + kHead + 2 * world_size_, is_size);
  }
  Collective collective() const { return static_cast<Collective>(values_[1]); }
  DQuantType qtype() const { return static_cast<DQuantType>(values_[2]); }
  int64_t sends(int64_t rank) const { return values_[kHead + rank]; }
  int64_t receives(int64_t rank) const { return values_[kHead + world_size_ + rank]; }
  std::optional<Refusal> refusal() const {
    return read_refusal(reinterpret_cast<const uint8_t*>(values_ + kHead + 2 * world_size_));
  }

 private:
  const int64_t* values_;
  int64_t world_size_;
};

// An exchange that is refused has no sizes.
at::Tensor write_record(const Exchange& exchange, const std::optional<Refusal>& refusal) {
  const int64_t world_size = exchange.group->getSize();
  at::Tensor record = at::zeros({Record::size(world_size)}, at::kLong);
  auto* const values = record.mutable_data_ptr<int64_t>();
  values[0] = Record::kMark;
  values[1] = static_cast<int64_t>(exchange.collective);
  values[2] = static_cast<int64_t>(exchange.encoding.qtype);
  std::copy(exchange.sends.begin(), exchange.sends.end(), values + Record::kHead);
  std::copy(exchange.receives.begin(), exchange.receives.end(), values + Record::kHead + world_size);
  write_refusal(refusal, reinterpret_cast<uint8_t*>(values + Record::kHead + 2 * world_size));
  return record;
}

// Where the group can carry a record: on the CPU or, of a group without it, where the tensors are. A rank that refuses
// has none.
at::Device record_device(const Exchange& exchange) {
  return moves_cpu_tensors(exchange.group) || exchange.sources.empty() ? any_device(exchange.group)
                                                                       : exchange.sources[0].device();
}

// All ranks' records, int64 [W, Record::size(W)] on the CPU. Zeros, which a message that is too short leaves, are no
// record.
at::Tensor gather_records(const Exchange& exchange, const std::optional<Refusal>& refusal) {
  return all_gather_rows(exchange.group, operator_name(exchange.collective), write_record(exchange, refusal),
                         record_device(exchange));
}

std::vector<Record> read_records(const at::Tensor& gathered, const Exchange& exchange) {
  const int64_t world_size = exchange.group->getSize();
  std::vector<Record> records;
  for (int64_t rank = 0; rank < world_size; ++rank) {
    records.emplace_back(gathered.const_data_ptr<int64_t>() + rank * Record::size(world_size), world_size);
    if (!records.back().is_record()) {
      throw_backend_error(exchange.rank, operator_name(exchange.collective),
                          c10::str("rank ", rank,
                                   " sent something else than the sizes of such a call; it does something else, or "
                                   "its memory or program is damaged"));
    }
  }
  return records;
}

void check_no_refusal(const std::vector<Record>& records) {
  for (size_t rank = 0; rank < records.size(); ++rank) {
    const auto refusal = records[rank].refusal();
    if (refusal.has_value()) {
      throw_refusal(*refusal, operator_name(records[rank].collective()), static_cast<int64_t>(rank));
    }
  }
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

// What rank `receiver` calls the place for the segment of `sender`.
std::string place_name(Collective collective, int64_t sender) {
  if (collective == Collective::kAllToAllSingle) {
    return "output has room for";
  }
  return c10::str("outputs[", sender, "] has");
}

void check_segments_fit(const std::vector<Record>& records) {
  const auto world_size = static_cast<int64_t>(records.size());
  const Collective collective = records[0].collective();
  for (int64_t sender = 0; sender < world_size; ++sender) {
    for (int64_t receiver = 0; receiver < world_size; ++receiver) {
      const int64_t segment = records[sender].sends(receiver);
      const int64_t place = records[receiver].receives(sender);
      TORCH_CHECK_VALUE(segment == place, operator_name(collective), ": rank ", sender, " sends ", segment,
                        " elements to rank ", receiver, ", whose ", place_name(collective, sender), " ", place);
    }
  }
}

// The segments of this rank alone count, whose sizes are those of its own tensors: no number that another rank only
// says is trusted. In an all-gather these are all there are.
int64_t longest_segment(const Exchange& exchange) {
  int64_t longest = 0;
  for (const auto* const segments : {&exchange.sends, &exchange.receives}) {
    longest = std::max(longest, *std::max_element(segments->begin(), segments->end()));
  }
  return longest;
}

}  // namespace

int64_t agree(const Exchange& exchange) {
  const at::Tensor gathered = gather_records(exchange, std::nullopt);
  const std::vector<Record> records = read_records(gathered, exchange);
  check_no_refusal(records);
  check_same_call(records);
  check_segments_fit(records);
  return longest_segment(exchange);
}

void refuse(const Exchange& exchange, const Refusal& refusal) {
  refuse_together(refusal, [&] {
    const at::Tensor gathered = gather_records(exchange, refusal);
    check_no_refusal(read_records(gathered, exchange));
  });
}

}  // namespace narrowcast::collectives
