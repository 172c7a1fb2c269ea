#include "ops/collectives/mean/quantized_mean_job.h"

#include <utility>

namespace narrowcast::collectives {
namespace {

std::unique_ptr<MeanExchange> make_narrow_exchange(const QuantizedMeanOptions& options,
                                                   std::shared_ptr<MessageMemory> memory) {
  const MeanOptions mean{
      .rank = options.rank, .world_size = options.world_size, .numel = options.numel, .format = options.format};
  if (options.codec) {
    return make_one_shot(mean, options.codec(at::kCPU), std::move(memory));
  }
  const Route route = choose_route(options.numel, options.world_size, options.format, options.link);
  return make_mean_exchange(route, mean, std::move(memory));
}

std::unique_ptr<MeanExchange> make_exact_exchange(const QuantizedMeanOptions& options, int64_t numel,
                                                  std::shared_ptr<MessageMemory> memory) {
  const Route route = choose_route(numel, options.world_size, WireFormat::kFp32, options.link);
  return make_mean_exchange(route,
                            {.rank = options.rank,
                             .world_size = options.world_size,
                             .numel = numel,
                             .format = WireFormat::kFp32,
                             .first_channel = kChannelsPerArray},
                            std::move(memory));
}

}  // namespace

QuantizedMeanJob::QuantizedMeanJob(QuantizedMeanOptions options, const JobMemory& memory)
    : options_(std::move(options)),
      narrow_(make_narrow_exchange(options_, memory.narrow)),
      exact_(options_.exact),
      exact_exchange_(make_exact_exchange(options_, exact_.values().numel(), memory.exact)) {}

int64_t QuantizedMeanJob::payload_bytes() const { return narrow_->payload_bytes() + exact_exchange_->payload_bytes(); }

void QuantizedMeanJob::start(engine::Transport& transport) {
  exact_.take_from(call_.array);
  exact_exchange_->start(transport, {exact_.values(), {}, {}});
  narrow_->start(transport, call_);
}

void QuantizedMeanJob::advance(engine::Transport& transport) {
  exact_exchange_->advance(transport);
  narrow_->advance(transport);
}

at::Tensor QuantizedMeanJob::finish(engine::Transport& transport) {
  narrow_->finish(transport);
  exact_exchange_->finish(transport);
  exact_.put_back(call_.array);
  return std::exchange(call_, {}).array;
}

}  // namespace narrowcast::collectives
