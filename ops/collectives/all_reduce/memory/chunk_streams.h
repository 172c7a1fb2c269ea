// Chunks of an array on two streams in turn: one is encoded or decoded while the messages of another are on their way.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <vector>

namespace narrowcast::collectives {

// The second of the two streams; the first is the caller's current one.
class ChunkStreams {
 public:
  // A part of what is to be enqueued of a chunk on the current stream: kernels, a collective, kernels that need it.
  using Step = std::function<void(int64_t chunk)>;

  // Calls every step for each of the chunks, those of a chunk in order and on one stream, on that of the chunk before
  // last: for two chunks the first step, then for both the next one, and so on, and then for the next two. So every
  // rank issues the same collectives in the same order; and where these follow each other (CollectiveOrder), one
  // chunk's are under way while the stream of the other one computes.
  //
  // What is enqueued on the current stream before this call comes before all of it, and what is enqueued there after it
  // comes after all of it, also if a step throws. On the CPU, and for a single chunk, there is no other stream. Throws
  // what a step throws, or c10::Error where the device orders no streams any more.
  void run(c10::Device device, int64_t chunks, const std::vector<Step>& steps);

 private:
  void join(const c10::Stream& first, const std::exception_ptr& error) const;

  std::optional<c10::Stream> second_;  // On the device of the last call.
};

}  // namespace narrowcast::collectives
