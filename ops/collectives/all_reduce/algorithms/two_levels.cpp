#include "ops/collectives/all_reduce/algorithms/two_levels.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "ops/collectives/all_reduce/algorithms/route.h"
#include "ops/collectives/all_reduce/array/element_order.h"
#include "ops/collectives/all_reduce/codec/codec.h"
#include "ops/collectives/all_reduce/codec/wire_codec.h"
#include "ops/comm/node/node_memory.h"

namespace narrowcast::collectives {
namespace {

using node::NodeLayout;
using node::NodeMemory;
using node::Phase;
using node::SlotUse;

// With a single node, the owner of a segment publishes its mean in chunks of at least kNodeChunkNumel elements, and in
// at most kMostNodeChunks of them.
constexpr int64_t kNodeChunkNumel = int64_t{1} << 18;
constexpr int64_t kMostNodeChunks = 16;

const uint8_t* bytes_of(const at::Tensor& floats) {
  return reinterpret_cast<const uint8_t*>(floats.const_data_ptr<float>());
}

class TwoLevels final : public AllReduceExchange {
 public:
  TwoLevels(const TwoLevelOptions& options, std::shared_ptr<MessageMemory> memory)
      : numel_(options.mean.numel),
        array_(options.array),
        order_(options.nodes->layout.nodes() == 1 ? ElementOrder() : options.mean.order),
        gets_whole_(options.mean.result == Result::kWhole),
        memory_(options.nodes->memory),
        segments_(cut(numel_, options.nodes->layout.segments())),
        weight_(weight_of_node(options.nodes->layout, options.nodes->layout.node_of(options.mean.rank))),
        chunks_(chunks_of_all(options)),
        across_(make_across(options, std::move(memory))),
        guard_(memory_) {}

  int64_t payload_bytes() const override { return across_ == nullptr ? 0 : across_->payload_bytes(); }

  int64_t advances() const override { return across_ == nullptr ? 1 : 2 + across_->advances(); }

  bool is_ready() override { return advanced_ == 0 && is_staged_ && memory_->all_have_reached(Phase::kStaged, use_); }

  void prepare(const AllReduceCall& call) override {
    guard_.begin();
    use_ = memory_->take_slot(array_);
    is_prepared_ = true;
    advanced_ = 0;
    is_staged_ = false;
    gathered_.assign(segments_.size(), 0);
    call_ = call;
    if (memory_->all_have_reached(Phase::kFinished, NodeMemory::before(use_))) {
      stage();
    }
  }

  // The other ranks cannot tell that this rank had prepared, because only start announces kStaged.
  void cancel() override {
    if (std::exchange(is_prepared_, false)) {
      memory_->return_slot(use_);
      call_ = {};
      guard_.end();
    }
  }

  void post_receives(engine::Transport& transport) override {
    if (across_ != nullptr) {
      across_->post_receives(transport);
    }
  }

  void start(engine::Transport& /*transport*/, AllReduceCall call) override {
    if (!is_prepared_) {
      prepare(call);
    }
    is_prepared_ = false;
    if (is_staged_) {
      memory_->reach(Phase::kStaged, use_);
    }
  }

  void advance(engine::Transport& transport) override {
    if (advanced_++ == 0) {
      average_in_node(transport);
    } else if (advanced_ < advances()) {
      across_->advance(transport);
    } else {
      across_->finish(transport);
    }
  }

  void finish(engine::Transport& transport) override {
    for (int64_t owner = 0; gets_whole_ && owner < owners(); ++owner) {
      while (gathered_[owner] < std::ssize(chunks_[owner])) {
        memory_->wait_until_reached(transport, {Phase::kPublished, use_, owner, step_of(owner, gathered_[owner])});
        gather_published();
      }
    }
    // Without the whole mean, no message of another node tells that this rank's own parts have left the staging buffer.
    if (across_ != nullptr && !gets_whole_ && stages_own()) transport.wait_sends();
    memory_->reach(Phase::kFinished, use_);
    call_.residuals.take_carried(call_.array);
    call_ = {};
    guard_.end();
  }

  // Also after finish: the job has failed, and ranks of the node would wait for its next submission.
  void give_up() override { memory_->give_up(); }

 private:
  int64_t owners() const { return static_cast<int64_t>(segments_.size()); }
  int64_t own() const { return memory_->local_rank(); }
  bool owns_elements() const { return own() < owners() && segments_[own()].numel > 0; }

  // The options of the exchange between the owners of this segment on all nodes, this rank included.
  static AllReduceOptions across_options(const TwoLevelOptions& options, int64_t owner, int64_t numel) {
    const NodeLayout& layout = options.nodes->layout;
    AllReduceOptions across = options.mean;
    across.rank = layout.node_of(options.mean.rank);
    across.world_size = layout.nodes();
    across.numel = numel;
    across.group_ranks = layout.owners_of(owner);
    across.order = {};  // The order of the staging buffers.
    return across;
  }

  static Route route_of(const TwoLevelOptions& options, const AllReduceOptions& across) {
    return choose_route(across.numel, across.world_size, across.format, options.link);
  }

  // For each owner, the parts of its segment in the order in which their means are complete.
  std::vector<std::vector<ElementRange>> chunks_of_all(const TwoLevelOptions& options) const {
    std::vector<std::vector<ElementRange>> chunks;
    for (int64_t owner = 0; owner < owners(); ++owner) {
      const ElementRange& segment = segments_[owner];
      if (options.nodes->layout.nodes() == 1) {
        chunks.push_back(cut(segment, std::clamp<int64_t>(segment.numel / kNodeChunkNumel, 1, kMostNodeChunks)));
      } else {
        const AllReduceOptions across = across_options(options, owner, segment.numel);
        chunks.push_back(result_ranges(route_of(options, across), across));
        for (ElementRange& chunk : chunks.back()) {
          chunk.begin += segment.begin;
        }
      }
      std::erase_if(chunks.back(), [](const ElementRange& chunk) { return chunk.numel == 0; });
      TORCH_CHECK_VALUE(chunks.back().size() <= node::kAllSteps, "a mean over ", options.nodes->layout.nodes(),
                        " nodes has ", chunks.back().size(), " parts, but at most ", node::kAllSteps, " are supported");
    }
    return chunks;
  }

  // Null for a rank without a segment, and with one node.
  std::unique_ptr<AllReduceExchange> make_across(const TwoLevelOptions& options,
                                                 std::shared_ptr<MessageMemory> memory) const {
    if (!owns_elements() || options.nodes->layout.nodes() == 1) {
      return nullptr;
    }
    const AllReduceOptions across = across_options(options, own(), segments_[own()].numel);
    return make_exchange(route_of(options, across), across, std::move(memory));
  }

  // The step of kPublished that signals this chunk of this owner.
  uint32_t step_of(int64_t owner, int64_t chunk) const {
    return chunk + 1 == std::ssize(chunks_[owner]) ? node::kAllSteps : static_cast<uint32_t>(chunk + 1);
  }

  // A segment in its owner's staging buffer: float32 [segment.numel].
  at::Tensor staged(int64_t local_rank, const ElementRange& segment) const {
    return at::from_blob(memory_->staging_buffer(use_, local_rank, numel_) + segment.begin, {segment.numel},
                         at::kFloat);
  }

  at::Tensor of_array(const ElementRange& segment) const { return call_.array.narrow(0, segment.begin, segment.numel); }

  // A segment of the array.
  ArraySlice ordered(const ElementRange& segment) const {
    return {call_.array, segment, nullptr, order_.grain_order()};
  }

  // This rank's own segment can stay in the array, because no other rank reads it before the mean is complete. It is
  // staged if copying changes its values or its elements are not contiguous.
  bool stages_own() const {
    return call_.array.scalar_type() != at::kFloat || call_.residuals.carried.defined() || !order_.is_identity();
  }

  // The buffer in which the node's mean of this rank's own segment becomes the mean over all nodes.
  at::Tensor averaged(const ElementRange& segment) const {
    return stages_own() ? staged(own(), segment) : of_array(segment);
  }

  void copy_from_array(const ElementRange& segment, const at::Tensor& buffer) const {
    if (call_.array.scalar_type() == at::kFloat) {
      copy_slice(ordered(segment), {buffer, {0, segment.numel}});
    } else if (order_.is_identity()) {
      buffer.copy_(of_array(segment));
    } else {
      exact_codec_->encode({}, ordered(segment), reinterpret_cast<uint8_t*>(buffer.mutable_data_ptr()));
    }
  }

  void copy_to_array(const at::Tensor& buffer, const ElementRange& segment) const {
    if (call_.array.scalar_type() == at::kFloat) {
      copy_slice({buffer, {0, segment.numel}}, ordered(segment));
    } else {
      exact_codec_->decode(bytes_of(buffer), ordered(segment));
    }
  }

  void stage() {
    memory_->choose_buffer(use_, numel_);
    const bool skips = owns_elements() && !stages_own();
    const ElementRange skipped = skips ? segments_[own()] : ElementRange{numel_, 0};
    const int64_t rest = skipped.begin + skipped.numel;
    for (const ElementRange& segment : {ElementRange{0, skipped.begin}, ElementRange{rest, numel_ - rest}}) {
      const at::Tensor buffer = staged(own(), segment);
      copy_from_array(segment, buffer);
      if (call_.residuals.carried.defined()) {
        buffer.add_(order_.take(call_.residuals.carried, segment));
      }
    }
    is_staged_ = true;
  }

  void average_in_node(engine::Transport& transport) {
    if (!is_staged_) {
      memory_->wait_until_all_reached(transport, Phase::kFinished, NodeMemory::before(use_));
      stage();
      memory_->reach(Phase::kStaged, use_);
    }
    if (!owns_elements()) {
      return;
    }
    memory_->wait_until_all_reached(transport, Phase::kStaged, use_);
    if (across_ == nullptr) {
      for (const ElementRange& chunk : chunks_[own()]) {
        average_chunk(chunk);
        gets_whole_ ? publish_next() : take_own(chunk);
      }
      return;
    }
    const ElementRange& segment = segments_[own()];
    across_->start(transport, {averaged(segment),
                               call_.rounding.at(segment.begin),
                               call_.residuals,
                               {[this, begin = segment.begin](const ElementRange& part) {
                                  average_chunk({begin + part.begin, part.numel});
                                },
                                [this, begin = segment.begin](const ElementRange& part) {
                                  gets_whole_ ? publish_next() : take_own({begin + part.begin, part.numel});
                                }}});
  }

  // Averages the chunk over the node's ranks.
  void average_chunk(const ElementRange& chunk) {
    RankMessages parts;
    for (int64_t local_rank = 0; local_rank < memory_->local_size(); ++local_rank) {
      parts.push_back(local_rank == own() ? nullptr : bytes_of(staged(local_rank, chunk)));
    }
    const at::Tensor mean = averaged(chunk);
    exact_codec_->average(parts, {mean, {0, chunk.numel}});
    if (weight_ != 1) {
      mean.mul_(weight_);
    }
  }

  // Writes the mean of a part of this rank's segment to the array, if it is not there already.
  void take_own(const ElementRange& part) const {
    if (stages_own()) {
      copy_to_array(staged(own(), part), part);
    }
  }

  // Publishes the mean of this rank's next chunk. While the chunk after it is being exchanged, this rank copies chunks
  // that other ranks have published.
  void publish_next() {
    const int64_t index = gathered_[own()]++;
    const ElementRange& chunk = chunks_[own()][index];
    take_own(chunk);
    if (!stages_own()) {
      copy_from_array(chunk, staged(own(), chunk));
    }
    memory_->reach(Phase::kPublished, use_, step_of(own(), index));
    gather_published();
  }

  // Copies published chunks from the owners' staging buffers, without waiting. Each rank begins with a different owner,
  // so that not all of them read the same memory at once.
  void gather_published() {
    for (int64_t i = 0; i < owners(); ++i) {
      const int64_t owner = (own() + i) % owners();
      int64_t& next = gathered_[owner];
      while (next < std::ssize(chunks_[owner]) &&
             memory_->has_reached(Phase::kPublished, use_, owner, step_of(owner, next))) {
        const ElementRange& chunk = chunks_[owner][next++];
        copy_to_array(staged(owner, chunk), chunk);
      }
    }
  }

  const int64_t numel_;
  const int64_t array_;
  const ElementOrder order_;  // All segments count in this order.
  const bool gets_whole_;     // Else this rank gets SentParts::mean, and nothing is published.
  const std::shared_ptr<NodeMemory> memory_;
  const std::vector<ElementRange> segments_;  // By the local rank of their owners.
  const double weight_;
  const std::vector<std::vector<ElementRange>> chunks_;
  const std::unique_ptr<AllReduceExchange> across_;
  // The node's memory holds float32.
  const std::unique_ptr<const WireCodec> exact_codec_ = make_wire_codec(WireFormat::kFp32, at::kCPU);
  // State of the call in progress:
  AllReduceCall call_;
  SlotUse use_;
  bool is_prepared_ = false;  // And not yet started.
  int64_t advanced_ = 0;
  bool is_staged_ = false;
  std::vector<int64_t> gathered_;  // Number of each owner's chunks that are in the array.
  node::FailureGuard guard_;
};

}  // namespace

std::unique_ptr<AllReduceExchange> make_two_levels(const TwoLevelOptions& options,
                                                   std::shared_ptr<MessageMemory> memory) {
  return std::make_unique<TwoLevels>(options, std::move(memory));
}

}  // namespace narrowcast::collectives
