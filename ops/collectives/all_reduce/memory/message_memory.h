// Where the messages of exchanges lie.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ops/collectives/all_reduce/memory/chunk_streams.h"
#include "ops/comm/engine/engine.h"

namespace narrowcast::collectives {

// `bytes` of uninitialised uint8 from LibTorch's CPU allocator, 1-D, aligned to 64 bytes at least. A large buffer is
// aligned to, and asks the kernel for, huge pages: encoder, network and decoder all walk through it, and with small
// pages a virtual machine spent 8% of a quantised step on address translation. To be kept from step to step: fresh
// pages cost more than the network.
at::Tensor allocate_message_buffer(int64_t bytes);

// Memory for the messages of all exchanges of one engine that share this object. An engine has
// engine::kMaxInFlight exchanges in flight and finishes them in the order in which it started them, so that as many
// buffers, taken in turn, suffice, however many buckets a model has. Used on the engine's thread.
class MessageMemory {
 public:
  struct Buffer {
    size_t place = 0;  // Which of the buffers it is.
    at::Tensor bytes;
  };

  // `in_flight`: how many exchanges are in flight at most, if fewer than an engine allows; at least 1.
  explicit MessageMemory(size_t in_flight = engine::kMaxInFlight) : in_flight_(in_flight) {}

  // The next buffer, with at least `bytes` bytes. What it held before is lost.
  Buffer take(int64_t bytes);

 private:
  const size_t in_flight_;
  std::array<at::Tensor, engine::kMaxInFlight> buffers_;
  size_t next_ = 0;
  int64_t largest_ = 0;
};

// The messages of one exchange in such a buffer, each aligned to 64 bytes.
class MessageLayout {
 public:
  // Adds a message of that size and returns its index.
  size_t add(int64_t bytes);

  int64_t total_bytes() const { return total_; }

  // The messages by index, as views of the buffer. The views stay from step to step.
  const std::vector<at::Tensor>& place_in(const MessageMemory::Buffer& buffer);

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
  std::array<Views, engine::kMaxInFlight> views_;
};

// What exchanges share that follow each other on a stream of a device: what one leaves there is done with before the
// next one is enqueued, so that there is as much as the largest of them needs.
class StreamWorkspace {
 public:
  // uint8 [bytes] on the device, for what is enqueued on its current stream, always the same one, until this is called
  // again. It holds anything, and begins where the allocator begins: on a GPU at a multiple of 512 bytes.
  at::Tensor take(int64_t bytes, at::Device device) {
    if (!memory_.defined() || memory_.numel() < bytes || memory_.device() != device) {
      memory_.reset();  // Before another one is allocated.
      memory_ = at::empty({bytes}, at::TensorOptions(at::kByte).device(device));
    }
    return memory_.narrow(0, 0, bytes);
  }

  int64_t bytes() const { return memory_.defined() ? memory_.numel() : 0; }

  // The other stream of exchanges that go in chunks.
  ChunkStreams& chunk_streams() { return chunk_streams_; }

 private:
  at::Tensor memory_;
  ChunkStreams chunk_streams_;
};

}  // namespace narrowcast::collectives
