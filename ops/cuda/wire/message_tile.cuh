// Transfer of the bytes of a tile's message between device memory and lanes.
//
// Nothing in a message is aligned, and a lane has few bytes. So a warp puts its bytes into a staging buffer of shared
// memory, at the same offset from a multiple of 16 bytes (a granule) as in device memory. Whole granules are
// transferred in one access each, the bytes before the first and after the last one byte by byte.
#pragma once

#include <cstdint>

#include "ops/codec/wire_format.h"
#include "ops/cuda/launch/vectors.h"
#include "ops/cuda/wire/array_tile.cuh"

namespace narrowcast::cuda {

// The unit of one access, and its bytes.
using Granule = Pack<uint32_t, 4>;
inline constexpr int kGranule = sizeof(Granule);

// Bytes of a whole tile's message.
template <class Format>
inline constexpr int kTileBytes = kTile / Format::kBlock* Format::kBlockBytes;

// A warp's staging buffer: a message, up to 15 bytes before it, and one word after it.
template <class Format>
struct StagingBuffer {
  Granule granules[(kTileBytes<Format> + kGranule - 1) / kGranule + 2];

  __device__ __forceinline__ uint8_t* bytes() { return reinterpret_cast<uint8_t*>(granules); }
};

// The position of a segment of bytes: `head` bytes before the first granule, `whole` granules, `tail` bytes after them.
struct Granules {
  int phase;  // The first byte's offset in its granule.
  int head;
  int whole;
  int tail;

  __device__ __forceinline__ Granules(const uint8_t* bytes, int size)
      : phase(static_cast<int>(reinterpret_cast<uintptr_t>(bytes) % kGranule)) {
    const int to_granule = (kGranule - phase) % kGranule;
    head = to_granule < size ? to_granule : size;
    const auto after_head = static_cast<unsigned>(size - head);
    whole = static_cast<int>(after_head / kGranule);
    tail = static_cast<int>(after_head % kGranule);
  }

  // The byte that the lane transfers by itself: one of the head or of the tail, or -1.
  __device__ __forceinline__ int edge(int lane) const {
    const int i = lane % kGranule;
    const int after = head + whole * kGranule;
    return lane < kGranule ? (i < head ? i : -1) : (i < tail ? after + i : -1);
  }
};

// Copies a granule to shared memory without a register. It is there for this thread after __pipeline_commit and
// __pipeline_wait_prior, and for other threads after a later barrier. A .cu file first includes
// <cuda_pipeline_primitives.h>, a test on the host tests/support/cuda_on_host/cuda_on_host.h.
__device__ __forceinline__ void copy_async(void* shared, const void* global) {
  NARROWCAST_DEVICE_CHECK(is_aligned<Granule>(shared) && is_aligned<Granule>(global));
  __pipeline_memcpy_async(shared, global, sizeof(Granule));
}

// A transfer of a message of at most kMost bytes into shared memory. A warp requests it, continues, and waits only when
// it needs the message.
template <int kMost>
struct IncomingBytes {
  Granules lie;
  uint8_t* begin;      // In shared memory.
  int own_edge_place;  // Offset of the byte that the lane copies itself, or -1.
  uint8_t own_edge;

  // Requests `size` bytes, to be placed from `staging` + their phase on. No lane may still read that memory.
  __device__ __forceinline__ IncomingBytes(const uint8_t* bytes, int size, int lane, uint8_t* staging)
      : lie(bytes, size), begin(staging + lie.phase), own_edge_place(lie.edge(lane)) {
    constexpr int kTurns = (kMost / kGranule + kWarpSize - 1) / kWarpSize;
    const int first = lie.head + lane * kGranule;
    uint8_t* const to = begin + first;
    const uint8_t* const from = bytes + first;
    NARROWCAST_UNROLL
    for (int turn = 0; turn < kTurns; ++turn) {
      if (lane + turn * kWarpSize < lie.whole) {
        copy_async(to + turn * kWarpSize * kGranule, from + turn * kWarpSize * kGranule);
      }
    }
    __pipeline_commit();
    own_edge = own_edge_place >= 0 ? bytes[own_edge_place] : uint8_t{0};
  }

  // Waits for the bytes. All lanes see them after the next __syncwarp.
  __device__ __forceinline__ void wait() const {
    __pipeline_wait_prior(0);
    if (own_edge_place >= 0) {
      begin[own_edge_place] = own_edge;
    }
  }
};

// The offset in its staging buffer at which a warp writes a message for `bytes`, so that accesses of kUnit bytes are
// aligned. It is the offset of `bytes` in its granule, or 0 if that is not a multiple of kUnit.
template <int kUnit>
__device__ __forceinline__ int outgoing_offset(const uint8_t* bytes) {
  const auto phase = static_cast<int>(reinterpret_cast<uintptr_t>(bytes) % kGranule);
  return phase % kUnit == 0 ? phase : 0;
}

// Sends a message that is at outgoing_offset<kUnit>(bytes), where all lanes see it.
template <int kUnit>
__device__ __forceinline__ void send(uint8_t* staging, int size, int lane, uint8_t* bytes) {
  const Granules lie(bytes, size);
  if (lie.phase % kUnit != 0) {
    for (int i = lane; i < size; i += kWarpSize) {
      bytes[i] = staging[i];
    }
    return;
  }
  const uint8_t* const begin = staging + lie.phase;
  for (int granule = lane; granule < lie.whole; granule += kWarpSize) {
    const int offset = lie.head + granule * kGranule;
    store_vector(bytes + offset, load_vector<Granule>(begin + offset));
  }
  const int mine = lie.edge(lane);
  if (mine >= 0) {
    bytes[mine] = begin[mine];
  }
}

// The kWords words that begin at byte `offset` of a staging buffer, with any alignment.
template <int kWords>
struct UnalignedWords {
  uint32_t at[kWords];

  __device__ __forceinline__ UnalignedWords(const uint8_t* staging, int offset) {
    const auto byte = static_cast<unsigned>(offset);
    const uint8_t* const first = staging + byte / 4 * 4;
    const unsigned shift = byte % 4 * 8;
    auto low = load_vector<uint32_t>(first);
    NARROWCAST_UNROLL
    for (int i = 0; i < kWords; ++i) {
      const auto high = load_vector<uint32_t>(first + 4 * (i + 1));
      at[i] = __funnelshift_r(low, high, shift);
      low = high;
    }
  }
};

}  // namespace narrowcast::cuda
