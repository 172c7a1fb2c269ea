// The contract of the operators on wire formats: each function checks its
// operator's arguments and returns the output, allocated and not yet filled, on
// the input's device. They are the meta kernels; CPU and CUDA kernels start with
// them, so that every device refuses and returns the same.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/SymInt.h>

#include <cstdint>
#include <optional>
#include <string_view>

namespace narrowcast::meta {

// Bytes of a message of numel elements.
c10::SymInt encoded_size(const c10::SymInt& numel, std::string_view format);

// For x [...]: uint8 [encoded_size].
at::Tensor encode(const at::Tensor& x, std::string_view format, std::optional<int64_t> seed, int64_t step,
                  int64_t offset);

// For bytes [encoded_size(numel)]: float32 [numel].
at::Tensor decode(const at::Tensor& bytes, std::string_view format, const c10::SymInt& numel);

}  // namespace narrowcast::meta
