#include "ops/collectives/mean/stream_mean.h"

#include <algorithm>
#include <functional>
#include <string>
#include <utility>

#include "ops/collectives/mean/segment_codec.h"
#include "ops/collectives/mean/stream_exchange.h"
#include "ops/collectives/mean/two_levels.h"
#include "ops/libtorch_versions.h"

namespace narrowcast::collectives {
namespace {

// Memory, cut into regions that begin where slots do.
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

// The same numbers in the same places as TwoLevels on the engine.
class TwoLevelStreamExchange final : public StreamExchange {
 public:
  TwoLevelStreamExchange(std::shared_ptr<const StreamGroups> groups, QuantizedMeanOptions options,
                         CollectiveCalls collectives)
      : groups_(std::move(groups)),
        options_(std::move(options)),
        collectives_(std::move(collectives)),
        local_rank_(groups_->node()->getRank()),
        segments_(cut(options_.numel, groups_->layout().segments())),
        weight_(weight_of_node(groups_->layout(), groups_->layout().node_of(options_.rank))),
        across_(make_across()) {
    for (const Segment& segment : segments_) {
      means_.push_back(means_of(segment));
      longest_mean_ = std::max(longest_mean_, slot_bytes(bytes_of(means_.back(), segment)));
    }
  }

  int64_t payload_bytes() const override { return across_ == nullptr ? 0 : across_->payload_bytes(); }

  // Of the array in float32, all parts of the own segment, its mean in float32, that which is sent, those
  // of all segments, and what the exchange between nodes needs.
  int64_t workspace_bytes() const override {
    const int64_t own = owns_elements() ? slot_numel(own_segment().numel) : 0;
    return (slot_numel(options_.numel) + own * (local_size() + 1)) * kFloatBytes + longest_mean_ * (local_size() + 1) +
           (across_ == nullptr ? 0 : across_->workspace_bytes());
  }

  void enqueue(const MeanCall& call, const at::Tensor& workspace) override {
    Regions regions(workspace);
    const at::Tensor array = as_float32(call, regions.floats(slot_numel(options_.numel)));
    const at::Tensor parts = send_parts(array, regions);
    at::Tensor own_mean = message_of_own_mean(call, parts, regions);
    take_means(gather(own_mean, regions), call.array);
    call.residuals.take_carried(call.array);
  }

 private:
  static constexpr auto kFloatBytes = static_cast<int64_t>(sizeof(float));

  // Codes, where the owners of a segment exchange them in two shots; nothing for float32.
  using Means = std::unique_ptr<ShardMessages>;

  int64_t owners() const { return static_cast<int64_t>(segments_.size()); }
  int64_t local_size() const { return groups_->node()->getSize(); }
  bool owns_elements() const { return local_rank_ < owners() && segments_[local_rank_].numel > 0; }
  const Segment& own_segment() const { return segments_[local_rank_]; }

  std::unique_ptr<OneLevelStreamExchange> make_across() const {
    if (!owns_elements() || groups_->owners() == nullptr) {
      return nullptr;
    }
    QuantizedMeanOptions across = options_;
    across.numel = own_segment().numel;
    return std::make_unique<OneLevelStreamExchange>(groups_->owners(), std::move(across), collectives_);
  }

  Means means_of(const Segment& segment) const {
    const int64_t nodes = groups_->layout().nodes();
    return choose_route(segment.numel, nodes, options_.format, options_.link) == Route::kTwoShot
               ? std::make_unique<ShardMessages>(options_.format, segment.numel, nodes)
               : nullptr;
  }

  static int64_t bytes_of(const Means& means, const Segment& segment) {
    return means == nullptr ? encoded_size(segment.numel, WireFormat::kFp32) : means->bytes();
  }

  // A segment as it travels as float32 in the node: as many elements as fill whole slots.
  static int64_t slot_numel(int64_t numel) { return slot_bytes(numel * kFloatBytes) / kFloatBytes; }

  // [slot_numel of the array's]: segments but for the last one fill their slots. The array's own memory, or `floats`
  // with 0 behind the array.
  static at::Tensor as_float32(const MeanCall& call, const at::Tensor& floats) {
    const int64_t numel = call.array.numel();
    if (call.array.scalar_type() == at::kFloat && !call.residuals.carried.defined() && floats.numel() == numel) {
      return call.array;
    }
    floats.narrow(0, numel, floats.numel() - numel).zero_();
    const at::Tensor array = floats.narrow(0, 0, numel);
    array.copy_(call.array);
    if (call.residuals.carried.defined()) {
      array.add_(call.residuals.carried);
    }
    return floats;
  }

  // Every rank's part of this rank's segment, by local rank: float32 [ranks of the node * slot_numel of the segment].
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

  // What this rank sends in the node: anything, if it owns no elements.
  at::Tensor message_of_own_mean(const MeanCall& call, const at::Tensor& parts, Regions& regions) {
    at::Tensor message = regions.bytes(longest_mean_);
    if (owns_elements()) {
      average(call, parts, message, regions);
    }
    return message;
  }

  // Averages this rank's segment: over its node, then over all of them.
  void average(const MeanCall& call, const at::Tensor& parts, const at::Tensor& message, Regions& regions) {
    const Segment& segment = own_segment();
    const Means& means = means_[local_rank_];
    const at::Tensor mean = means == nullptr ? floats_of(message, segment) : regions.floats(segment.numel);
    RankMessages by_rank;
    for (int64_t rank = 0; rank < local_size(); ++rank) {
      const float* const part = parts.const_data_ptr<float>() + rank * slot_numel(segment.numel);
      by_rank.push_back(reinterpret_cast<const uint8_t*>(part));
    }
    average_segments(WireFormat::kFp32, by_rank, {mean, {0, segment.numel}});
    if (weight_ != 1) {
      mean.mul_(weight_);
    }
    if (across_ == nullptr) {
      return;
    }
    const MeanCall over_nodes{mean, call.rounding.at(segment.begin), call.residuals};
    const at::Tensor workspace = regions.bytes(across_->workspace_bytes());
    if (means == nullptr) {
      across_->enqueue(over_nodes, workspace);
    } else {
      across_->enqueue_undecoded(over_nodes, workspace, message.narrow(0, 0, means->bytes()));
    }
  }

  // By local rank.
  at::Tensor gather(at::Tensor& own_mean, Regions& regions) const {
    at::Tensor gathered = regions.bytes(longest_mean_ * local_size());
    collectives_.call("all-gather of means in the node, of " + options_.name,
                      [&] { libtorch::all_gather_on_stream(groups_->node(), gathered, own_mean); });
    return gathered;
  }

  void take_means(const at::Tensor& gathered, const at::Tensor& array) const {
    for (int64_t owner = 0; owner < owners(); ++owner) {
      const Segment& segment = segments_[owner];
      const at::Tensor message = gathered.narrow(0, owner * longest_mean_, longest_mean_);
      const at::Tensor elements = array.narrow(0, segment.begin, segment.numel);
      if (means_[owner] == nullptr) {
        elements.copy_(floats_of(message, segment));
      } else {
        means_[owner]->decode(message, elements);
      }
    }
  }

  static at::Tensor floats_of(const at::Tensor& message, const Segment& segment) {
    return message.narrow(0, 0, encoded_size(segment.numel, WireFormat::kFp32)).view(at::kFloat);
  }

  const std::shared_ptr<const StreamGroups> groups_;
  const QuantizedMeanOptions options_;
  const CollectiveCalls collectives_;
  const int64_t local_rank_;
  const std::vector<Segment> segments_;  // By the local rank of their owners.
  const double weight_;
  const std::unique_ptr<OneLevelStreamExchange> across_;  // Null for ranks without a segment, and with one node.
  std::vector<Means> means_;                              // By owner.
  int64_t longest_mean_ = 0;                              // In bytes: the message of every rank of a node.
};

std::unique_ptr<StreamExchange> make_exchange(const StreamRanks& ranks, const QuantizedMeanOptions& options,
                                              at::Device device) {
  const CollectiveCalls collectives{options.rank, device, ranks.order};
  if (ranks.groups != nullptr && !options.codec && options.numel > 0) {
    return std::make_unique<TwoLevelStreamExchange>(ranks.groups, options, collectives);
  }
  return std::make_unique<OneLevelStreamExchange>(ranks.group, options, collectives);
}

}  // namespace

StreamMean::StreamMean(const StreamRanks& ranks, const QuantizedMeanOptions& options, at::Device device,
                       std::shared_ptr<StreamWorkspace> workspace)
    : workspace_(workspace == nullptr ? std::make_shared<StreamWorkspace>() : std::move(workspace)),
      exact_(options.exact, device),
      narrow_(make_exchange(ranks, options, device)),
      exact_exchange_(make_exchange(ranks,
                                    QuantizedMeanOptions{.name = options.name,
                                                         .rank = options.rank,
                                                         .world_size = options.world_size,
                                                         .numel = exact_.values().numel(),
                                                         .format = WireFormat::kFp32,
                                                         .link = options.link},
                                    device)) {}

StreamMean::~StreamMean() = default;

int64_t StreamMean::payload_bytes() const { return narrow_->payload_bytes() + exact_exchange_->payload_bytes(); }

// One exchange after the other has the same memory.
void StreamMean::enqueue(const MeanCall& call) {
  const at::Tensor memory =
      workspace_->take(std::max(exact_exchange_->workspace_bytes(), narrow_->workspace_bytes()), call.array.device());
  exact_.take_from(call.array);
  exact_exchange_->enqueue({exact_.values(), {}, {}}, memory);
  narrow_->enqueue(call, memory);
  exact_.put_back(call.array);
}

}  // namespace narrowcast::collectives
