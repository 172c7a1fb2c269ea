#include "ops/collectives/mean/stream_mean.h"

#include "ops/collectives/mean/stream_exchange.h"

namespace narrowcast::collectives {

StreamMean::StreamMean(const c10::intrusive_ptr<c10d::ProcessGroup>& group, const QuantizedMeanOptions& options,
                       at::Device device)
    : exact_(options.exact, device),
      narrow_(std::make_unique<StreamExchange>(
          group, StreamExchange::Options{options.name, options.numel, options.format, options.link}, device)),
      exact_exchange_(std::make_unique<StreamExchange>(
          group, StreamExchange::Options{options.name, exact_.values().numel(), WireFormat::kFp32, options.link},
          device)) {}

StreamMean::~StreamMean() = default;

int64_t StreamMean::payload_bytes() const { return narrow_->payload_bytes() + exact_exchange_->payload_bytes(); }

void StreamMean::enqueue(const MeanCall& call) {
  exact_.take_from(call.array);
  if (exact_.values().numel() > 0) {
    exact_exchange_->enqueue({exact_.values(), {}, {}});
  }
  narrow_->enqueue(call);
  exact_.put_back(call.array);
}

}  // namespace narrowcast::collectives
