#include "trainer/ddp/reducer/block_alignment.h"

#include <algorithm>
#include <functional>

namespace narrowcast {

BucketIndices aligned_to_blocks(BucketIndices buckets, const std::vector<at::Tensor>& parameters) {
  for (std::vector<size_t>& bucket : buckets) {
    std::ranges::stable_sort(bucket, std::greater<>(),
                             [&](size_t index) { return filled_block(parameters[index].numel()); });
  }
  return buckets;
}

}  // namespace narrowcast
