// Keeps a GPU busy, so that work which was not made to wait for other work comes too early, and work on memory that was
// given away too soon comes too late.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <limits>
#include <vector>

namespace narrowcast::test {

// Enqueues 6 TFLOP of float32 on the current stream: a tenth of a second of an H100, more of others.
inline void keep_gpu_busy() {
  const at::Tensor factor = at::full({4096, 4096}, 1e-4, at::kCUDA);
  at::Tensor product = at::empty_like(factor);
  for (int i = 0; i < 44; ++i) at::mm_out(product, factor, factor);
}

// Takes memory of the sizes that `like` and its parts have from LibTorch's allocator, fills it with NaN on the current
// stream, and gives it back: what is still to be read of memory that was given away before is lost.
inline void overwrite_free_memory(const at::Tensor& like) {
  std::vector<at::Tensor> taken;
  for (const int64_t divisor : {1, 1, 2, 3, 4}) {
    taken.push_back(at::full({like.numel() / divisor}, std::numeric_limits<float>::quiet_NaN(), at::kCUDA));
    taken.push_back(at::full({like.numel() / divisor}, 0x7F, at::device(at::kCUDA).dtype(at::kByte)));
  }
}

}  // namespace narrowcast::test
