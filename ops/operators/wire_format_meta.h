// The contract of the operators on messages of wire formats, and of the collectives that send such messages; see
// meta.h.
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

// For bytes [encoded_size(numel)]: float32 [numel]. Throws CorruptInputError for another number of bytes.
at::Tensor decode(const at::Tensor& bytes, std::string_view format, const c10::SymInt& numel);

// The part of the contract of quantized_all_reduce_ and quantized_all_reduce that one rank can check. For x [...], the
// second function returns a tensor of its shape and dtype for the mean.
void check_quantized_all_reduce(const at::Tensor& x, std::string_view format, std::string_view levels);
at::Tensor quantized_all_reduce(const at::Tensor& x, std::string_view format, std::string_view levels);

// The part of the contract of quantized_reduce_scatter_ that needs no process group.
void check_quantized_reduce_scatter(const at::Tensor& shard, const at::Tensor& input, std::string_view format,
                                    std::string_view op);

}  // namespace narrowcast::meta
