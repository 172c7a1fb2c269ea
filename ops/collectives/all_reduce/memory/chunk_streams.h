// Chunks of an array on two streams in turn: one is encoded or decoded while the messages of another are being sent.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <vector>

namespace narrowcast::collectives {

// Owns the second of the two streams. The first one is the caller's current stream.
class ChunkStreams {
 public:
  // A part of a chunk's work, enqueued on the current stream: kernels, a collective, or kernels that need its result.
  using Step = std::function<void(int64_t chunk)>;

  // Calls every step for each chunk. The chunks alternate between the two streams; the steps of a chunk are called in
  // order and on one stream. Chunks are taken in pairs: the first step for both, then the next step for both, and so
  // on. So every rank issues the same collectives in the same order. If CollectiveOrder serialises them, the
  // collectives of one chunk run while the stream of the other chunk computes.
  //
  // Work enqueued on the current stream before this call runs before all steps. Work enqueued there afterwards runs
  // after all of them, even if a step throws. On the CPU, and for a single chunk, there is no second stream. Throws the
  // exception of a step, or c10::Error if the device can no longer order streams.
  void run(c10::Device device, int64_t chunks, const std::vector<Step>& steps);

 private:
  void join(const c10::Stream& first, const std::exception_ptr& error) const;

  std::optional<c10::Stream> second_;  // On the device of the last call.
};

}  // namespace narrowcast::collectives
