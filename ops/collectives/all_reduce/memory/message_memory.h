// Buffers for the messages of exchanges.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/util/intrusive_ptr.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "ops/collectives/all_reduce/memory/chunk_streams.h"
#include "ops/comm/engine/engine.h"

namespace narrowcast::collectives {

// `bytes` of uninitialised uint8 from LibTorch's CPU allocator, 1-D, aligned to at least 64 bytes. A large buffer is
// aligned to huge pages and requests them from the kernel. Encoder, network and decoder all walk through it, and with
// small pages a virtual machine spent 8% of a quantised step on address translation. Keep the buffer from step to step:
// fresh pages cost more than the network.
at::Tensor allocate_message_buffer(int64_t bytes);

// Buffers for the messages of all exchanges of one engine that share this object. Each takes at most one, when it
// starts. An engine finishes exchanges in the order in which it started them. So as many buffers as exchanges are in
// flight, taken in turn, suffice for any number of buckets. Used by one thread at a time.
class MessageMemory {
 public:
  static constexpr size_t kMostBuffers = engine::kMaxInFlightOverCarrier;

  struct Buffer {
    size_t place = 0;  // Index of the buffer.
    at::Tensor bytes;
  };

  // The memory that all exchanges of a group on its engine can share. It is freed when its last user is destroyed.
  static std::shared_ptr<MessageMemory> of(const c10::intrusive_ptr<c10d::ProcessGroup>& group);

  // `users`: the most exchanges in flight that share this object, if they are fewer than the engine's.
  explicit MessageMemory(size_t users = kMostBuffers) : users_(users) {}

  // The next buffer, with at least `bytes` bytes. Its former content is lost. `in_flight`: Transport::most_in_flight.
  Buffer take(int64_t bytes, size_t in_flight = engine::kMaxInFlight);

 private:
  const size_t users_;
  std::array<at::Tensor, kMostBuffers> buffers_;
  size_t next_ = 0;
  int64_t largest_ = 0;
};

// The messages of one exchange in such a buffer, each aligned to 64 bytes.
class MessageOffsets {
 public:
  // Adds a message of that size and returns its index.
  size_t add(int64_t bytes);

  // Takes the next buffer of `memory`. Returns the messages by index, as views of it, which are kept from step to step.
  const std::vector<at::Tensor>& place_in(MessageMemory& memory, size_t in_flight = engine::kMaxInFlight);

 private:
  struct Message {
    int64_t begin;
    int64_t bytes;
  };
  struct Views {
    at::Tensor buffer;
    std::vector<at::Tensor> messages;
  };
  std::vector<Message> messages_;
  int64_t total_ = 0;
  std::array<Views, MessageMemory::kMostBuffers> views_;
};

// Workspace of exchanges that follow each other on one stream of a device. Each one is finished with it before the next
// one runs, so its size is the maximum over the exchanges.
class StreamWorkspace {
 public:
  // uint8 [bytes] on the device, for work on its current stream until the next call. All calls must use the same
  // stream. The content is undefined. It begins where the allocator begins: on a GPU at a multiple of 512 bytes.
  at::Tensor take(int64_t bytes, at::Device device) {
    if (!memory_.defined() || memory_.numel() < bytes || memory_.device() != device) {
      memory_.reset();  // Frees the old memory before the new one is allocated.
      memory_ = at::empty({bytes}, at::TensorOptions(at::kByte).device(device));
    }
    return memory_.narrow(0, 0, bytes);
  }

  int64_t bytes() const { return memory_.defined() ? memory_.numel() : 0; }

  // The second stream of exchanges that are sent in chunks.
  ChunkStreams& chunk_streams() { return chunk_streams_; }

 private:
  at::Tensor memory_;
  ChunkStreams chunk_streams_;
};

}  // namespace narrowcast::collectives
