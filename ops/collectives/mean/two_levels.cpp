#include "ops/collectives/mean/two_levels.h"

#include <ATen/ops/from_blob.h>

#include <utility>
#include <vector>

#include "ops/collectives/mean/segment_codec.h"
#include "ops/node/node_memory.h"

namespace narrowcast::collectives {
namespace {

using node::Moment;
using node::NodeLayout;
using node::NodeMemory;
using node::Turn;

class TwoLevels final : public MeanExchange {
 public:
  TwoLevels(const TwoLevelOptions& options, std::shared_ptr<MessageMemory> memory)
      : numel_(options.mean.numel),
        array_(options.array),
        memory_(options.nodes->memory),
        segments_(cut(numel_, options.nodes->layout.segments())),
        weight_(weight_of_node(options)),
        across_(make_across(options, std::move(memory))) {}

  int64_t payload_bytes() const override { return across_ == nullptr ? 0 : across_->payload_bytes(); }

  int64_t advances() const override { return across_ == nullptr ? 1 : 2 + across_->advances(); }

  bool is_ready() override { return advanced_ == 0 && is_staged_ && memory_->all_have_reached(Moment::kStaged, turn_); }

  void post_receives(engine::Transport& transport) override {
    turn_ = memory_->take_turn(array_);
    advanced_ = 0;
    is_staged_ = false;
    if (across_ != nullptr) {
      across_->post_receives(transport);
    }
  }

  void start(engine::Transport& /*transport*/, MeanCall call) override {
    call_ = std::move(call);
    if (memory_->all_have_reached(Moment::kFinished, NodeMemory::before(turn_))) {
      stage();
    }
  }

  void advance(engine::Transport& transport) override {
    if (advanced_++ == 0) {
      sum_in_node(transport);
    } else if (advanced_ < advances()) {
      across_->advance(transport);
    } else {
      across_->finish(transport);
      memory_->reach(Moment::kPublished, turn_);
    }
  }

  // Each rank begins with its own segment, so that not all read the same one at once.
  void finish(engine::Transport& transport) override {
    for (int64_t i = 0; i < owners(); ++i) {
      const int64_t owner = (memory_->local_rank() + i) % owners();
      const Segment& segment = segments_[owner];
      if (segment.numel > 0) {
        memory_->wait_until_reached(transport, Moment::kPublished, turn_, owner);
        call_.array.narrow(0, segment.begin, segment.numel).copy_(staged(owner, segment));
      }
    }
    memory_->reach(Moment::kFinished, turn_);
    call_ = {};
  }

 private:
  int64_t owners() const { return static_cast<int64_t>(segments_.size()); }
  bool owns_elements() const { return memory_->local_rank() < owners() && segments_[memory_->local_rank()].numel > 0; }
  const Segment& own_segment() const { return segments_[memory_->local_rank()]; }

  // N g / W with g ranks on this node.
  static double weight_of_node(const TwoLevelOptions& options) {
    const NodeLayout& layout = options.nodes->layout;
    const auto local = static_cast<double>(options.nodes->memory->local_size());
    return static_cast<double>(layout.nodes()) * local / static_cast<double>(layout.world_size());
  }

  // Null for ranks without a segment, and where there is one node.
  std::unique_ptr<MeanExchange> make_across(const TwoLevelOptions& options,
                                            std::shared_ptr<MessageMemory> memory) const {
    const NodeLayout& layout = options.nodes->layout;
    if (!owns_elements() || layout.nodes() == 1) {
      return nullptr;
    }
    MeanOptions across = options.mean;
    across.rank = layout.node_of(options.mean.rank);
    across.world_size = layout.nodes();
    across.numel = own_segment().numel;
    across.group_ranks = layout.owners_of(memory_->local_rank());
    const Route route = choose_route(across.numel, across.world_size, across.format, options.link);
    return make_mean_exchange(route, across, std::move(memory));
  }

  // A segment in its owner's staging buffer: float32 [segment.numel].
  at::Tensor staged(int64_t local_rank, const Segment& segment) const {
    return at::from_blob(memory_->staging_buffer(turn_, local_rank, numel_) + segment.begin, {segment.numel},
                         at::kFloat);
  }

  void stage() {
    const at::Tensor buffer = staged(memory_->local_rank(), {0, numel_});
    buffer.copy_(call_.array);
    if (call_.residuals.carried.defined()) {
      buffer.add_(call_.residuals.carried);
    }
    is_staged_ = true;
    memory_->reach(Moment::kStaged, turn_);
  }

  void sum_in_node(engine::Transport& transport) {
    if (!is_staged_) {
      memory_->wait_until_all_reached(transport, Moment::kFinished, NodeMemory::before(turn_));
      stage();
    }
    if (!owns_elements()) {
      return;
    }
    memory_->wait_until_all_reached(transport, Moment::kStaged, turn_);
    average_own_segment();
    if (across_ == nullptr) {
      memory_->reach(Moment::kPublished, turn_);
    } else {
      across_->start(transport, {staged(memory_->local_rank(), own_segment()), call_.rounding.at(own_segment().begin),
                                 call_.residuals});
    }
  }

  void average_own_segment() {
    const Segment& segment = own_segment();
    RankMessages parts;
    for (int64_t local_rank = 0; local_rank < memory_->local_size(); ++local_rank) {
      const float* const part = memory_->staging_buffer(turn_, local_rank, numel_) + segment.begin;
      parts.push_back(local_rank == memory_->local_rank() ? nullptr : reinterpret_cast<const uint8_t*>(part));
    }
    const at::Tensor own = staged(memory_->local_rank(), segment);
    average_segments(WireFormat::kFp32, parts, {own, {0, segment.numel}});
    if (weight_ != 1) {
      own.mul_(weight_);
    }
  }

  const int64_t numel_;
  const int64_t array_;
  const std::shared_ptr<NodeMemory> memory_;
  const std::vector<Segment> segments_;  // By the local rank of their owners.
  const double weight_;
  const std::unique_ptr<MeanExchange> across_;
  // Of the call in progress:
  MeanCall call_;
  Turn turn_;
  int64_t advanced_ = 0;
  bool is_staged_ = false;
};

}  // namespace

std::unique_ptr<MeanExchange> make_two_levels(const TwoLevelOptions& options, std::shared_ptr<MessageMemory> memory) {
  return std::make_unique<TwoLevels>(options, std::move(memory));
}

}  // namespace narrowcast::collectives
