// Positions, in their buckets, of parameters whose gradients are rounded in blocks.
//
// A block has one scale or one header, given by its largest number. If a bias shares a block with a weight of much
// larger gradients, the bias is rounded with the step of the weight. So the parameters of a bucket are ordered by the
// size of the blocks that they fill, the largest first. Parameters that fill whole blocks then share no block, and
// their blocks hold the same numbers in any bucket. Only parameters at the bucket's end share blocks, mostly biases and
// norms.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <narrowcast/wire_formats.h>
#include "ops/codec/wire_format.h"
#include "trainer/ddp/reducer/bucket_size.h"

namespace narrowcast {

// Number of elements of the largest block of all wire formats that send every element. A block of a sparse format has
// levels of its largest elements only, and is larger than most parameters.
inline constexpr int64_t kLargestBlock = std::ranges::max(kWireFormatRows, {}, [](const WireFormatRow& row) {
                                           return codec::wire::is_sparse(row.format) ? 1 : row.block;
                                         }).block;

static_assert(std::ranges::all_of(kWireFormatRows,
                                  [](const WireFormatRow& row) {
                                    return std::has_single_bit(static_cast<uint64_t>(row.block));
                                  }),
              "blocks must be powers of two to be aligned by them");

// The greatest power of two, up to kLargestBlock, that divides `numel`.
constexpr int64_t filled_block(int64_t numel) {
  int64_t block = kLargestBlock;
  while (numel % block != 0) {
    block /= 2;
  }
  return block;
}

// The same buckets, with parameters that fill larger blocks first and equal ones in the given order. Each parameter
// begins at a multiple of its filled_block().
BucketIndices aligned_to_blocks(BucketIndices buckets, const std::vector<at::Tensor>& parameters);

}  // namespace narrowcast
