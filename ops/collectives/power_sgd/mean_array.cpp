#include "ops/collectives/power_sgd/mean_array.h"

#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <cstring>
#include <utility>

#include "ops/collectives/mean/two_levels.h"

namespace narrowcast::collectives {
namespace {

// Float64 as it is; the mean is a sum in the order of ranks, divided by their number.
class Float64Codec final : public MeanCodec {
 public:
  int64_t grain() const override { return 1; }

  int64_t message_bytes(const Segment& chunk) const override {
    return chunk.numel * static_cast<int64_t>(sizeof(double));
  }

  void encode(const MeanCall& call, const Segment& chunk, const at::Tensor& message) override {
    std::memcpy(message.mutable_data_ptr(), call.array.const_data_ptr<double>() + chunk.begin, message.nbytes());
  }

  void average(const MeanCall& call, const Segment& chunk, const std::vector<at::Tensor>& messages) override {
    const at::Tensor mean = call.array.narrow(0, chunk.begin, chunk.numel);
    mean.copy_(messages[0].view(at::kDouble));
    for (size_t rank = 1; rank < messages.size(); ++rank) {
      mean.add_(messages[rank].view(at::kDouble));
    }
    mean.div_(static_cast<double>(messages.size()));
  }
};

bool goes_over_levels(const MeanArrayOptions& options) {
  return options.nodes != nullptr && options.nodes->memory != nullptr && options.dtype == at::kFloat &&
         options.numel > 0;
}

std::unique_ptr<MeanExchange> make_exchange(const MeanArrayOptions& options, std::shared_ptr<MessageMemory> memory) {
  const MeanOptions mean{.rank = options.rank,
                         .world_size = options.world_size,
                         .numel = options.numel,
                         .format = options.format,
                         .first_channel = options.array * kChannelsPerArray};
  if (options.dtype == at::kDouble) {
    return make_one_shot(mean, std::make_unique<Float64Codec>(), std::move(memory));
  }
  if (goes_over_levels(options)) {
    return make_two_levels({mean, options.nodes, options.array, options.link}, std::move(memory));
  }
  const Route route = choose_route(mean.numel, mean.world_size, mean.format, options.link);
  return make_mean_exchange(route, mean, std::move(memory));
}

node::NodeLayout layout_of(const MeanArrayOptions& options) {
  return goes_over_levels(options) ? options.nodes->layout : node::NodeLayout::flat(options.world_size);
}

}  // namespace

MeanArray::MeanArray(const MeanArrayOptions& options, std::shared_ptr<MessageMemory> memory)
    : options_(options),
      has_levels_(goes_over_levels(options)),
      values_(at::zeros({options.numel}, options.dtype)),
      exchange_(make_exchange(options, std::move(memory))) {
  if (options.keeps_lost && options.format != WireFormat::kFp32) {
    const SentParts parts = sent_parts(layout_of(options), options.rank, options.numel);
    lost_own_ = at::zeros({parts.own.numel}, at::kFloat);
    lost_mean_ = at::zeros({parts.mean.numel}, at::kFloat);
  }
}

void MeanArray::start(engine::Transport& transport) {
  Residuals residuals;
  if (lost_own_.defined()) {
    residuals = {lost_own_.zero_().mutable_data_ptr<float>(),
                 lost_mean_.zero_().mutable_data_ptr<float>(),
                 {lost_own_, lost_mean_}};
  }
  exchange_->start(transport, {values_, {}, residuals});
}

// What is lacking of a node's mean is that of W / N ranks, of the mean that of all.
at::Tensor MeanArray::lost() const {
  if (!lost_own_.defined()) {
    return {};
  }
  const node::NodeLayout layout = layout_of(options_);
  const SentParts parts = sent_parts(layout, options_.rank, options_.numel);
  const auto ranks = static_cast<double>(options_.world_size);
  at::Tensor lost = at::zeros_like(values_);
  lost.narrow(0, parts.own.begin, parts.own.numel).add_(lost_own_, ranks / static_cast<double>(layout.nodes()));
  lost.narrow(0, parts.mean.begin, parts.mean.numel).add_(lost_mean_, ranks);
  return lost;
}

}  // namespace narrowcast::collectives
