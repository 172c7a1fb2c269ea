#include "ops/collectives/mean/quantized_mean_job.h"

#include <utility>

namespace narrowcast::collectives {
namespace {

std::unique_ptr<MeanExchange> make_exact_exchange(const QuantizedMeanOptions& options, int64_t numel,
                                                  std::shared_ptr<MessageMemory> memory) {
  const Route route = choose_route(numel, options.world_size, WireFormat::kFp32, options.link);
  return make_mean_exchange(route, {options.rank, options.world_size, numel, WireFormat::kFp32, kChannelsPerArray},
                            std::move(memory));
}

}  // namespace

QuantizedMeanJob::QuantizedMeanJob(QuantizedMeanOptions options, const JobMemory& memory)
    : options_(std::move(options)),
      route_(choose_route(options_.numel, options_.world_size, options_.format, options_.link)),
      narrow_(make_mean_exchange(route_, {options_.rank, options_.world_size, options_.numel, options_.format},
                                 memory.narrow)),
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
