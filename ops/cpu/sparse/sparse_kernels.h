// Messages in the sparse formats (ops/codec/sparse_top.h) on the CPU. The bytes and numbers equal the codec's.
//
// Each function runs on the calling thread. To use more threads, split the work at multiples of kSparseBlock elements
// with for_sparse_parts. Pointers need no alignment, and must not overlap unless stated otherwise.
#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <type_traits>

#include "ops/codec/sparse_top.h"
#include "ops/cpu/wire/wire_kernels.h"

namespace narrowcast::cpu {

using codec::wire::kSparseBlock;

// The elements of a block.
using SparseTile = std::array<float, kSparseBlock>;

// Writes the message of x[0..n). T is float, double, c10::BFloat16 or c10::Half; elements are first rounded to float32.
template <class T>
void sparse_encode(int per_mille, const T* x, int64_t n, uint8_t* bytes);

// Writes the block of x[0..n), 0 < n <= kSparseBlock, for the current instruction set.
void sparse_encode_block(int per_mille, const float* x, int64_t n, uint8_t* bytes);

// mean[i] = (((part of rank 0 + part of rank 1) + ...) / divisor, in float32 and in this order. May be written to
// parts.own. Messages begin with the parts' first element.
void sparse_average(int per_mille, const RankParts& parts, float* mean);

// The same for a block that begins at that byte of every message; `parts` has its elements only.
void sparse_average_block(int per_mille, const RankParts& parts, int64_t byte, float* mean);

// Calls body(first element, elements, first byte) for each block of an array of n elements, on ATen's threads. Only for
// files listed in narrowcast_parallel_sources.
template <class Body>
void for_sparse_parts(int per_mille, int64_t n, const Body& body) {
  constexpr int64_t kBlocksPerThread = 8;  // Enough work to start a thread for, as in for_wire_parts.
  const int64_t block_bytes = codec::wire::sparse_block_bytes<int64_t>(per_mille, kSparseBlock);
  at::parallel_for(0, (n + kSparseBlock - 1) / kSparseBlock, kBlocksPerThread, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block * kSparseBlock;
      body(first, std::min(kSparseBlock, n - first), block * block_bytes);
    }
  });
}

}  // namespace narrowcast::cpu
