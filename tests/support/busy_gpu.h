// Keeps a GPU busy. Work that does not wait for other work then runs too early, and work on memory that was freed too
// soon runs too late.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <limits>
#include <vector>

namespace narrowcast::test {

// Enqueues 6 TFLOP of float32 on the current stream: a tenth of a second on an H100, more on other GPUs.
inline void keep_gpu_busy() {
  const at::Tensor factor = at::full({4096, 4096}, 1e-4, at::kCUDA);
  at::Tensor product = at::empty_like(factor);
  for (int i = 0; i < 44; ++i) at::mm_out(product, factor, factor);
}

// Allocates memory of the sizes of `like` and its parts, fills it with NaN on the current stream, and frees it. Data in
// memory that was freed earlier and is still to be read are lost.
inline void overwrite_free_memory(const at::Tensor& like) {
  std::vector<at::Tensor> taken;
  for (const int64_t divisor : {1, 1, 2, 3, 4}) {
    taken.push_back(at::full({like.numel() / divisor}, std::numeric_limits<float>::quiet_NaN(), at::kCUDA));
    taken.push_back(at::full({like.numel() / divisor}, 0x7F, at::device(at::kCUDA).dtype(at::kByte)));
  }
}

}  // namespace narrowcast::test
