#include "ops/collectives/power_sgd/all_reduce_array.h"

#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <utility>

#include "ops/codec/wire_format.h"
#include "ops/collectives/all_reduce/algorithms/one_shot.h"
#include "ops/collectives/all_reduce/algorithms/route.h"
#include "ops/collectives/all_reduce/codec/codec.h"

namespace narrowcast::collectives {
namespace {

class Float64Codec final : public AllReduceCodec {
 public:
  int64_t grain() const override { return 1; }

  int64_t message_bytes(const ElementRange& chunk) const override {
    return chunk.numel * static_cast<int64_t>(sizeof(double));
  }

  void encode(const AllReduceCall& call, const ElementRange& chunk, const at::Tensor& message) override {
    message.view(at::kDouble).copy_(call.array.narrow(0, chunk.begin, chunk.numel));
  }

  void average(const AllReduceCall& call, const ElementRange& chunk, const std::vector<at::Tensor>& messages) override {
    const at::Tensor mean = call.array.narrow(0, chunk.begin, chunk.numel);
    mean.copy_(messages[0].view(at::kDouble));
    for (size_t rank = 1; rank < messages.size(); ++rank) {
      mean.add_(messages[rank].view(at::kDouble));
    }
    mean.div_(static_cast<double>(messages.size()));
  }
};

bool goes_over_levels(const AllReduceArrayOptions& options) {
  return options.nodes != nullptr && options.nodes->memory != nullptr && options.dtype == at::kFloat &&
         options.numel > 0;
}

std::unique_ptr<AllReduceExchange> make_exchange(const AllReduceArrayOptions& options,
                                                 std::shared_ptr<MessageMemory> memory) {
  const AllReduceOptions mean{.rank = options.rank,
                              .world_size = options.world_size,
                              .numel = options.numel,
                              .format = options.format,
                              .first_channel = options.array * kChannelsPerArray,
                              .order = ElementOrder::of(options.format, options.numel)};
  if (options.dtype == at::kDouble) {
    return make_one_shot(mean, float64_codec(), std::move(memory));
  }
  if (goes_over_levels(options)) {
    return make_two_levels({mean, options.nodes, options.array, options.link}, std::move(memory));
  }
  const Route route = choose_route(mean.numel, mean.world_size, mean.format, options.link);
  return make_exchange(route, mean, std::move(memory));
}

node::NodeLayout layout_of(const AllReduceArrayOptions& options) {
  return goes_over_levels(options) ? options.nodes->layout : node::NodeLayout::flat(options.world_size);
}

}  // namespace

std::unique_ptr<AllReduceCodec> float64_codec() { return std::make_unique<Float64Codec>(); }

LostInRounding::LostInRounding(node::NodeLayout layout, int64_t rank, const at::Tensor& array, WireFormat format)
    : layout_(std::move(layout)),
      order_(ElementOrder::of(format, array.numel())),
      parts_(sent_parts(layout_, rank, array.numel())),
      like_(array),
      own_(at::zeros({parts_.own.numel}, array.options().dtype(at::kFloat))),
      mean_(at::zeros({parts_.mean.numel}, array.options().dtype(at::kFloat))) {}

Residuals LostInRounding::take_all() const {
  own_.zero_();
  mean_.zero_();
  return {own_.mutable_data_ptr<float>(), mean_.mutable_data_ptr<float>(), {own_, mean_}};
}

// A node's mean represents W / N ranks and the mean represents W, so their errors count that many times in this rank's
// own numbers.
at::Tensor LostInRounding::in_own_numbers() const {
  const auto ranks = static_cast<double>(layout_.world_size());
  at::Tensor lost = at::zeros_like(like_);
  order_.add(own_, ranks / static_cast<double>(layout_.nodes()), parts_.own, lost);
  order_.add(mean_, ranks, parts_.mean, lost);
  return lost;
}

AllReduceArray::AllReduceArray(const AllReduceArrayOptions& options, std::shared_ptr<MessageMemory> memory)
    : options_(options),
      values_(at::zeros({options.numel}, options.dtype)),
      exchange_(make_exchange(options, std::move(memory))),
      payload_bytes_(exchange_->payload_bytes()) {
  if (options.keeps_lost && codec::wire::rounds(options.format)) {
    lost_.emplace(layout_of(options), options.rank, values_, options.format);
  }
}

void AllReduceArray::start(engine::Transport& transport) {
  exchange_->start(transport, {values_, {}, lost_ ? lost_->take_all() : Residuals{}});
}

}  // namespace narrowcast::collectives
