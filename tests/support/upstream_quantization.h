// PyTorch's quantization_hooks.py, operation for operation, with the ranks computed one after another in one process.
// The quantised hooks must match it bit for bit.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace narrowcast::hooks::upstream {

// The result of quantization_pertensor_hook on the ranks' buckets, rounded once to their dtype.
at::Tensor per_tensor_mean(const std::vector<at::Tensor>& buckets);

// The result of quantization_perchannel_hook with this bucket_size.
at::Tensor per_channel_mean(const std::vector<at::Tensor>& buckets, int64_t bucket_size = 512);

// The same for the first rank's bucket only, for the first two, and so on up to all.
std::vector<at::Tensor> per_channel_means(const std::vector<at::Tensor>& buckets, int64_t bucket_size);

}  // namespace narrowcast::hooks::upstream
