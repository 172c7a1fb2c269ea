#include "ops/collectives/mean/quantized_mean_job.h"

#include <algorithm>
#include <utility>

#include "ops/collectives/mean/element_order.h"
#include "ops/collectives/mean/two_levels.h"

namespace narrowcast::collectives {
namespace {

bool has_levels(const QuantizedMeanOptions& options) {
  return options.nodes != nullptr && options.nodes->memory != nullptr && !options.codec;
}

std::unique_ptr<MeanExchange> make_exchange(const QuantizedMeanOptions& options, const MeanOptions& mean, int64_t array,
                                            std::shared_ptr<MessageMemory> memory) {
  if (has_levels(options) && mean.numel > 0) {
    return make_two_levels({mean, options.nodes, array, options.link}, std::move(memory));
  }
  const Route route = choose_route(mean.numel, mean.world_size, mean.format, options.link);
  return make_mean_exchange(route, mean, std::move(memory));
}

std::unique_ptr<MeanExchange> make_narrow_exchange(const QuantizedMeanOptions& options,
                                                   std::shared_ptr<MessageMemory> memory) {
  const MeanOptions mean{.rank = options.rank,
                         .world_size = options.world_size,
                         .numel = options.numel,
                         .format = options.format,
                         .order = ElementOrder::of(options.format, options.numel)};
  if (options.codec) {
    return make_one_shot(mean, options.codec(at::kCPU), std::move(memory));
  }
  return make_exchange(options, mean, /*array=*/0, std::move(memory));
}

std::unique_ptr<MeanExchange> make_exact_exchange(const QuantizedMeanOptions& options, int64_t numel,
                                                  std::shared_ptr<MessageMemory> memory) {
  return make_exchange(options,
                       {.rank = options.rank,
                        .world_size = options.world_size,
                        .numel = numel,
                        .format = WireFormat::kFp32,
                        .first_channel = kChannelsPerArray},
                       /*array=*/1, std::move(memory));
}

}  // namespace

QuantizedMeanJob::QuantizedMeanJob(QuantizedMeanOptions options, const JobMemory& memory)
    : options_(std::move(options)),
      narrow_(make_narrow_exchange(options_, memory.narrow)),
      exact_(options_.exact),
      exact_exchange_(make_exact_exchange(options_, exact_.values().numel(), memory.exact)),
      guard_(has_levels(options_) ? options_.nodes->memory : nullptr) {}

int64_t QuantizedMeanJob::payload_bytes() const { return narrow_->payload_bytes() + exact_exchange_->payload_bytes(); }

QuantizedMeanJob::~QuantizedMeanJob() = default;

void QuantizedMeanJob::start(engine::Transport& transport) {
  guard_.begin();
  advanced_ = 0;
  guard_.attempt([&] {
    exact_.take_from(call_.array);
    if (call_.residuals.carried.defined()) {
      exact_.clear_in(call_.residuals.carried);  // Nothing is carried to them.
    }
    exact_exchange_->post_receives(transport);
    narrow_->post_receives(transport);
    exact_exchange_->start(transport, {exact_.values(), {}, {}});
    narrow_->start(transport, call_);
  });
}

int64_t QuantizedMeanJob::advances() const { return std::max(narrow_->advances(), exact_exchange_->advances()); }

bool QuantizedMeanJob::is_ready() {
  return (advanced_ >= narrow_->advances() || narrow_->is_ready()) &&
         (advanced_ >= exact_exchange_->advances() || exact_exchange_->is_ready());
}

void QuantizedMeanJob::advance(engine::Transport& transport) {
  guard_.attempt([&] {
    for (MeanExchange* const exchange : {exact_exchange_.get(), narrow_.get()}) {
      if (advanced_ < exchange->advances()) {
        exchange->advance(transport);
      }
    }
    ++advanced_;
  });
}

at::Tensor QuantizedMeanJob::finish(engine::Transport& transport) {
  guard_.attempt([&] {
    narrow_->finish(transport);
    exact_exchange_->finish(transport);
    exact_.put_back(call_.array);
  });
  guard_.end();
  return std::exchange(call_, {}).array;
}

}  // namespace narrowcast::collectives
