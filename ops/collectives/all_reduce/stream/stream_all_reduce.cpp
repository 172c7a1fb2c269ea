#include "ops/collectives/all_reduce/stream/stream_all_reduce.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "ops/collectives/all_reduce/algorithms/route.h"
#include "ops/collectives/all_reduce/algorithms/two_levels.h"
#include "ops/collectives/all_reduce/codec/codec.h"
#include "ops/collectives/all_reduce/codec/wire_codec.h"
#include "ops/collectives/all_reduce/stream/stream_exchange.h"
#include "ops/common/libtorch_versions.h"

namespace narrowcast::collectives {
namespace {

// Memory that is cut into regions, each beginning at a multiple of kSlotBytes.
class Regions {
 public:
  explicit Regions(at::Tensor memory) : memory_(std::move(memory)) {}

  at::Tensor bytes(int64_t count) {
    const int64_t begin = std::exchange(next_, next_ + slot_bytes(count));
    return memory_.narrow(0, begin, count);
  }
  at::Tensor floats(int64_t count) { return bytes(count * static_cast<int64_t>(sizeof(float))).view(at::kFloat); }

 private:
  const at::Tensor memory_;
  int64_t next_ = 0;
};

// The same values in the same places as TwoLevels on the engine. Within the node all elements are float32. The owners
// of a segment take exact elements out only when they encode its mean; the exact means follow the segment's mean in its
// message.
class TwoLevelStreamExchange final : public StreamExchange {
 public:
  TwoLevelStreamExchange(std::shared_ptr<const StreamGroups> groups, AllReduceJobOptions options,
                         CollectiveCalls collectives)
      : groups_(std::move(groups)),
        options_(std::move(options)),
        collectives_(std::move(collectives)),
        local_rank_(groups_->node()->getRank()),
        segments_(cut(options_.numel, groups_->layout().segments())),
        weight_(weight_of_node(groups_->layout(), groups_->layout().node_of(options_.rank))),
        own_exact_(owns_elements() ? within(options_.exact, own_segment()) : std::vector<ElementRange>(),
                   collectives_.device),
        across_(make_across()),
        exact_codec_(make_wire_codec(WireFormat::kFp32, collectives_.device.type())) {
    for (const ElementRange& segment : segments_) {
      means_.emplace_back(*groups_, options_, segment);
      longest_mean_ = std::max(longest_mean_, means_.back().bytes());
    }
  }

  int64_t payload_bytes() const override { return across_ == nullptr ? 0 : across_->payload_bytes(); }

  // The array in float32, all parts of the own segment, its mean in float32, the message of the mean, the messages of
  // all segments, and the workspace of the exchange between nodes.
  int64_t workspace_bytes() const override {
    const int64_t own = owns_elements() ? slot_numel(own_segment().numel) : 0;
    return (slot_numel(options_.numel) + own * (local_size() + 1)) * kFloatBytes + longest_mean_ * (local_size() + 1) +
           (across_ == nullptr ? 0 : across_->workspace_bytes());
  }

  void enqueue(const AllReduceCall& call, ExactElements& exact, const StreamMemory& memory) override {
    Regions regions(memory.bytes);
    const at::Tensor array = as_float32(call, exact, regions.floats(slot_numel(options_.numel)));
    const at::Tensor parts = send_parts(array, regions);
    at::Tensor own_mean = message_of_own_mean(call, parts, regions, memory.streams);
    take_means(gather(own_mean, regions), call.array, exact.values());
    call.residuals.take_carried(call.array);
    exact.put_back(call.array);
  }

 private:
  static constexpr auto kFloatBytes = static_cast<int64_t>(sizeof(float));

  // The form in which the mean of a segment is sent in the node. If its owners use two shots, it is the encoded
  // messages that they exchange, which include the exact elements. Otherwise it is float32, with the exact elements in
  // the next slot.
  class SegmentMean {
   public:
    SegmentMean(const StreamGroups& groups, const AllReduceJobOptions& options, const ElementRange& segment)
        : numel_(segment.numel) {
      for (const ElementRange& exact : within(options.exact, segment)) {
        exact_numel_ += exact.numel;
      }
      const int64_t nodes = groups.layout().nodes();
      if (choose_route(segment.numel, nodes, options.format, options.link) == Route::kTwoShot) {
        codes_.emplace(ShardedArray{options.format, numel_, exact_numel_, options.least_chunk_bytes}, nodes);
      }
    }

    bool is_codes() const { return codes_.has_value(); }
    int64_t exact_numel() const { return exact_numel_; }

    // Size of the message with its padding.
    int64_t bytes() const {
      return is_codes() ? codes_->bytes() : slot_bytes(numel_ * kFloatBytes) + slot_bytes(exact_numel_ * kFloatBytes);
    }

    // The place of the encoded messages in `message`, or of both kinds of float32.
    at::Tensor codes_in(const at::Tensor& message) const { return message.narrow(0, 0, codes_->bytes()); }
    at::Tensor mean_in(const at::Tensor& message) const {
      return message.narrow(0, 0, numel_ * kFloatBytes).view(at::kFloat);
    }
    at::Tensor exact_in(const at::Tensor& message) const {
      return message.narrow(0, slot_bytes(numel_ * kFloatBytes), exact_numel_ * kFloatBytes).view(at::kFloat);
    }

    // Decodes the message.
    void decode(const at::Tensor& message, const at::Tensor& elements, const at::Tensor& exact) const {
      if (is_codes()) {
        codes_->decode(message, elements);
        codes_->decode_exact(message, exact);
        return;
      }
      elements.copy_(mean_in(message));
      if (exact_numel_ > 0) {
        exact.copy_(exact_in(message));
      }
    }

   private:
    const int64_t numel_;
    int64_t exact_numel_ = 0;
    std::optional<ShardMessages> codes_;
  };

  int64_t owners() const { return static_cast<int64_t>(segments_.size()); }
  int64_t local_size() const { return groups_->node()->getSize(); }
  bool owns_elements() const { return local_rank_ < owners() && segments_[local_rank_].numel > 0; }
  const ElementRange& own_segment() const { return segments_[local_rank_]; }

  std::unique_ptr<OneLevelStreamExchange> make_across() const {
    if (!owns_elements() || groups_->owners() == nullptr) {
      return nullptr;
    }
    AllReduceJobOptions across = options_;
    across.numel = own_segment().numel;
    return std::make_unique<OneLevelStreamExchange>(groups_->owners(), std::move(across), own_exact_.values().numel(),
                                                    collectives_);
  }

  // Elements of a segment as float32 in the node, rounded up to fill whole slots.
  static int64_t slot_numel(int64_t numel) { return slot_bytes(numel * kFloatBytes) / kFloatBytes; }

  // Returns [slot_numel of the array's numel]; all segments except the last one fill their slots. It is the array
  // itself, or `floats` with 0 after the array. The carried residual is not added to exact elements.
  static at::Tensor as_float32(const AllReduceCall& call, ExactElements& exact, const at::Tensor& floats) {
    const int64_t numel = call.array.numel();
    if (call.array.scalar_type() == at::kFloat && !call.residuals.carried.defined() && floats.numel() == numel) {
      return call.array;
    }
    floats.narrow(0, numel, floats.numel() - numel).zero_();
    const at::Tensor array = floats.narrow(0, 0, numel);
    array.copy_(call.array);
    if (call.residuals.carried.defined()) {
      exact.clear_in(call.residuals.carried);
      array.add_(call.residuals.carried);
      exact.copy_from(call.array);
      exact.put_back(array);
    }
    return floats;
  }

  // Returns every rank's part of this rank's segment, by local rank: float32 [ranks of the node * slot_numel of the
  // segment].
  at::Tensor send_parts(at::Tensor array, Regions& regions) const {
    std::vector<int64_t> sent(local_size(), 0);
    for (int64_t owner = 0; owner < owners(); ++owner) {
      sent[owner] = slot_numel(segments_[owner].numel);
    }
    std::vector<int64_t> received(local_size(), owns_elements() ? sent[local_rank_] : 0);
    at::Tensor parts = regions.floats(received[0] * local_size());
    collectives_.call("all-to-all of segments in the node, of " + options_.name,
                      [&] { libtorch::all_to_all_on_stream(groups_->node(), parts, array, received, sent); });
    return parts;
  }

  // The message that this rank sends in the node; undefined content if it owns no elements.
  at::Tensor message_of_own_mean(const AllReduceCall& call, const at::Tensor& parts, Regions& regions,
                                 ChunkStreams& streams) {
    at::Tensor message = regions.bytes(longest_mean_);
    if (owns_elements()) {
      average(call, parts, message, regions, streams);
    }
    return message;
  }

  // Averages this rank's segment over its node, then over all nodes.
  void average(const AllReduceCall& call, const at::Tensor& parts, const at::Tensor& message, Regions& regions,
               ChunkStreams& streams) {
    const ElementRange& segment = own_segment();
    const SegmentMean& own = means_[local_rank_];
    const at::Tensor mean = own.is_codes() ? regions.floats(segment.numel) : own.mean_in(message);
    average_over_node(parts, mean);
    own_exact_.take_from(mean);
    if (across_ != nullptr) {
      const AllReduceCall over_nodes{mean, call.rounding.at(segment.begin), call.residuals};
      const StreamMemory memory{regions.bytes(across_->workspace_bytes()), streams};
      if (own.is_codes()) {
        across_->enqueue_undecoded(over_nodes, own_exact_.values(), memory, own.codes_in(message));
        return;
      }
      across_->enqueue_values(over_nodes, own_exact_.values(), memory);
    }
    if (own.exact_numel() > 0) {
      own.exact_in(message).copy_(own_exact_.values());
    }
  }

  void average_over_node(const at::Tensor& parts, const at::Tensor& mean) const {
    RankMessages by_rank;
    for (int64_t rank = 0; rank < local_size(); ++rank) {
      const float* const part = parts.const_data_ptr<float>() + rank * slot_numel(mean.numel());
      by_rank.push_back(reinterpret_cast<const uint8_t*>(part));
    }
    exact_codec_->average(by_rank, {mean, {0, mean.numel()}});
    if (weight_ != 1) {
      mean.mul_(weight_);
    }
  }

  // Returns the messages of all means, by local rank.
  at::Tensor gather(at::Tensor& own_mean, Regions& regions) const {
    at::Tensor gathered = regions.bytes(longest_mean_ * local_size());
    collectives_.call("all-gather of means in the node, of " + options_.name,
                      [&] { libtorch::all_gather_on_stream(groups_->node(), gathered, own_mean); });
    return gathered;
  }

  // `exact`: exact elements of the whole array, in the order of segments.
  void take_means(const at::Tensor& gathered, const at::Tensor& array, const at::Tensor& exact) const {
    int64_t exact_begin = 0;
    for (int64_t owner = 0; owner < owners(); ++owner) {
      const ElementRange& segment = segments_[owner];
      const SegmentMean& mean = means_[owner];
      mean.decode(gathered.narrow(0, owner * longest_mean_, longest_mean_),
                  array.narrow(0, segment.begin, segment.numel), exact.narrow(0, exact_begin, mean.exact_numel()));
      exact_begin += mean.exact_numel();
    }
  }

  const std::shared_ptr<const StreamGroups> groups_;
  const AllReduceJobOptions options_;
  const CollectiveCalls collectives_;
  const int64_t local_rank_;
  const std::vector<ElementRange> segments_;  // By the local rank of their owners.
  const double weight_;
  ExactElements own_exact_;                               // In this rank's segment.
  const std::unique_ptr<OneLevelStreamExchange> across_;  // Null for a rank without a segment, and with one node.
  const std::unique_ptr<const WireCodec> exact_codec_;    // For means of the node's ranks.
  std::vector<SegmentMean> means_;                        // By owner.
  int64_t longest_mean_ = 0;  // In bytes; every rank of a node sends a message of this size.
};

int64_t numel_of(const std::vector<ElementRange>& segments) {
  int64_t numel = 0;
  for (const ElementRange& segment : segments) {
    numel += segment.numel;
  }
  return numel;
}

ElementOrder order_of(const AllReduceJobOptions& options) {
  return options.codec ? ElementOrder() : ElementOrder::of(options.format, options.numel);
}

// The options with the exact segments counted in the order in which the array is sent.
AllReduceJobOptions ordered(AllReduceJobOptions options) {
  options.exact = order_of(options).offsets_of(options.exact);
  return options;
}

std::unique_ptr<StreamExchange> make_exchange(const StreamRanks& ranks, const AllReduceJobOptions& options,
                                              at::Device device) {
  const CollectiveCalls collectives{options.rank, device, ranks.order};
  if (ranks.groups != nullptr && !options.codec && options.numel > 0) {
    return std::make_unique<TwoLevelStreamExchange>(ranks.groups, options, collectives);
  }
  return std::make_unique<OneLevelStreamExchange>(ranks.group, options, numel_of(options.exact), collectives);
}

}  // namespace

StreamAllReduce::StreamAllReduce(const StreamRanks& ranks, const AllReduceJobOptions& options, at::Device device,
                                 std::shared_ptr<StreamWorkspace> workspace)
    : workspace_(workspace == nullptr ? std::make_shared<StreamWorkspace>() : std::move(workspace)),
      exact_ranges_(options.exact),
      order_(order_of(options)),
      exact_(ordered(options).exact, device),
      exchange_(make_exchange(ranks, ordered(options), device)) {}

StreamAllReduce::~StreamAllReduce() = default;

int64_t StreamAllReduce::payload_bytes() const { return exchange_->payload_bytes(); }

// A permuted array is copied before and after: two more passes over memory, compared with three of the format's
// kernels.
void StreamAllReduce::enqueue(const AllReduceCall& call) {
  if (order_.is_identity()) {
    return enqueue_ordered(call);
  }
  const ElementRange all{0, call.array.numel()};
  AllReduceCall dealt = call;
  dealt.array = order_.take(call.array, all);
  if (call.residuals.carried.defined()) {
    dealt.residuals.carried = order_.take(call.residuals.carried, all);
  }
  enqueue_ordered(dealt);
  order_.put(dealt.array, all, call.array);
  call.residuals.take_carried(call.array);
}

void StreamAllReduce::enqueue_ordered(const AllReduceCall& call) {
  exchange_->enqueue(
      call, exact_, {workspace_->take(exchange_->workspace_bytes(), call.array.device()), workspace_->chunk_streams()});
}

}  // namespace narrowcast::collectives
