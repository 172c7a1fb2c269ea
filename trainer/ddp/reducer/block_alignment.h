// Where in their buckets parameters lie whose gradients are rounded in blocks.
//
// A block has one scale or one header, that of its largest number: a bias that shares it with a weight of much larger
// gradients is rounded by the weight's step. So the parameters of a bucket lie in it by the size of the blocks that
// they fill, the largest first: of those that fill whole blocks none shares one with another, and its blocks hold the
// same numbers whichever bucket it is in. What is left are neighbours at the bucket's end: biases and norms, mostly.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <narrowcast/ddp_options.h>
#include <narrowcast/wire_formats.h>
#include "trainer/ddp/reducer/bucket_size.h"

namespace narrowcast {

// Elements of the largest blocks that there are.
inline constexpr int64_t kLargestBlock =
    std::max_element(kWireFormatRows.begin(), kWireFormatRows.end(),
                     [](const WireFormatRow& a, const WireFormatRow& b) { return a.block < b.block; })
        ->block;

static_assert(std::ranges::all_of(kWireFormatRows,
                                  [](const WireFormatRow& row) {
                                    return std::has_single_bit(static_cast<uint64_t>(row.block));
                                  }),
              "blocks must be powers of two to be aligned by them");

// The greatest power of two, up to kLargestBlock, of which `numel` is a multiple.
constexpr int64_t filled_block(int64_t numel) {
  int64_t block = kLargestBlock;
  while (numel % block != 0) {
    block /= 2;
  }
  return block;
}

// Whether the hook of these options sends any bucket in a format with blocks.
bool rounds_in_blocks(const DdpOptions& options);

// The same buckets, with those of `parameters` first that fill larger blocks, and else in the order given: each lies at
// a multiple of its filled_block().
BucketIndices aligned_to_blocks(BucketIndices buckets, const std::vector<at::Tensor>& parameters);

}  // namespace narrowcast
