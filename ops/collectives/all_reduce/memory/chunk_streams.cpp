#include "ops/collectives/all_reduce/memory/chunk_streams.h"

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <exception>

namespace narrowcast::collectives {
namespace {

constexpr int64_t kStreams = 2;

// Calls on_stream(chunk, step) in the order that `run` documents.
template <class OnStream>
void for_pairs(int64_t chunks, const std::vector<ChunkStreams::Step>& steps, const OnStream& on_stream) {
  for (int64_t first = 0; first < chunks; first += kStreams) {
    for (const ChunkStreams::Step& step : steps) {
      for (int64_t chunk = first; chunk < std::min(first + kStreams, chunks); ++chunk) {
        on_stream(chunk, step);
      }
    }
  }
}

// Work enqueued later on `later` begins once the work enqueued so far on `earlier` is done.
void order(const c10::Stream& earlier, const c10::Stream& later) {
  c10::Event event(earlier.device_type());
  event.record(earlier);
  event.block(later);
}

}  // namespace

void ChunkStreams::run(c10::Device device, int64_t chunks, const std::vector<Step>& steps) {
  if (device.is_cpu() || chunks < kStreams) {
    for_pairs(chunks, steps, [](int64_t chunk, const Step& step) { step(chunk); });
    return;
  }
  const c10::impl::VirtualGuardImpl streams(device.type());
  const c10::Stream first = streams.getStream(device);
  if (!second_.has_value() || second_->device() != first.device()) {
    second_ = streams.getStreamFromGlobalPool(device, /*isHighPriority=*/true);
  }
  order(first, *second_);
  std::exception_ptr error;
  try {
    for_pairs(chunks, steps, [&](int64_t chunk, const Step& step) {
      const c10::StreamGuard guard(chunk % kStreams == 0 ? first : *second_);
      step(chunk);
    });
  } catch (...) {
    error = std::current_exception();
  }
  join(first, error);
}

// Not a destructor, because it can throw: if a step failed with a sticky device error, ordering the streams fails as
// well.
void ChunkStreams::join(const c10::Stream& first, const std::exception_ptr& error) const {
  try {
    order(*second_, first);
  } catch (...) {
    if (error == nullptr) throw;  // Otherwise the step's error is the cause.
  }
  if (error != nullptr) std::rethrow_exception(error);
}

}  // namespace narrowcast::collectives
