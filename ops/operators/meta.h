// The contract of the operators, the same on every device. Each function checks its operator's arguments and returns
// the outputs on the input's device, allocated and not yet filled. These functions are the meta kernels; CPU and CUDA
// kernels call them first, so that every device has the same errors and outputs. A c10::ValueError or c10::TypeError
// names the argument.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/ScalarType.h>
#include <c10/core/SymInt.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Exception.h>
#include <c10/util/Half.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>

namespace narrowcast::meta {

// The only list of the dtypes that the operators quantise. Calls body(T()), where T is the C++ type of `dtype`, or
// otherwise() for another dtype. Returns the callable's result.
template <class Body, class Otherwise>
auto visit_float_or(at::ScalarType dtype, const Body& body, const Otherwise& otherwise) {
  switch (dtype) {
    case at::kFloat:
      return body(float());
    case at::kDouble:
      return body(double());
    case at::kBFloat16:
      return body(c10::BFloat16());
    case at::kHalf:
      return body(c10::Half());
    default:
      return otherwise();
  }
}

// Whether the operators quantise tensors of that dtype.
inline bool is_float(at::ScalarType dtype) {
  return visit_float_or(
      dtype, [](auto) { return true; }, [] { return false; });
}

// Throws a c10::TypeError that names `name` unless is_float(dtype).
inline void check_float_dtype(std::string_view name, at::ScalarType dtype) {
  TORCH_CHECK_TYPE(is_float(dtype), name, " must be float32, float64, bfloat16 or float16, not ", dtype);
}

// The same for a tensor called `name`.
inline void check_float(std::string_view name, const at::Tensor& tensor) {
  check_float_dtype(name, tensor.scalar_type());
}

// Calls body(T()) for the C++ type T of `dtype`. Throws c10::TypeError for a dtype that the operators do not quantise.
template <class Body>
void visit_float(at::ScalarType dtype, const Body& body) {
  check_float_dtype("dtype", dtype);
  visit_float_or(dtype, body, [] {});
}

// A contiguous tensor of `sizes` and `dtype`, on the device of `like`.
inline at::Tensor empty(c10::SymIntArrayRef sizes, const at::Tensor& like, at::ScalarType dtype) {
  return at::empty_symint(sizes, like.options().dtype(dtype).memory_format(at::MemoryFormat::Contiguous));
}

// Affine uint8. For x [...]: scale float32 [1], zero_point int32 [1].
std::tuple<at::Tensor, at::Tensor> choose_qparams_per_tensor(const at::Tensor& x);

// For x [C, ...]: scales float32 [C], zero_points int32 [C].
std::tuple<at::Tensor, at::Tensor> choose_qparams_per_channel(const at::Tensor& x);

// For x [...]: codes uint8 [...].
at::Tensor quantize_per_tensor(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& zero_point);

// For x [C, ...]: codes uint8 [C, ...].
at::Tensor quantize_per_channel(const at::Tensor& x, const at::Tensor& scales, const at::Tensor& zero_points);

// For q [...]: float32 [...].
at::Tensor dequantize_per_tensor(const at::Tensor& q, const at::Tensor& scale, const at::Tensor& zero_point);

// For q [C, ...]: float32 [C, ...].
at::Tensor dequantize_per_channel(const at::Tensor& q, const at::Tensor& scales, const at::Tensor& zero_points);

// FP16 and BFP16. These throw unless `tensor`, called `name` in messages, is a valid input of quantize_tensor or
// dequantize_tensor, respectively.
void check_quantizable(const at::Tensor& tensor, const std::string& name);
void check_dequantizable(const at::Tensor& tensor, const std::string& name);

// For x [...]: q float16 [...].
at::Tensor quantize_tensor(const at::Tensor& x, std::string_view qtype);

// For q [...]: float32 [...].
at::Tensor dequantize_tensor(const at::Tensor& q, std::string_view qtype, std::optional<double> quant_loss);

// The part of the auto_quantize operators' contract that needs no process group. These throw unless all tensors are
// defined, of the four float types, dense and on one device. The collectives call them first.
void check_all_gather(at::TensorList outputs, const at::Tensor& input);
void check_all_to_all(at::TensorList outputs, at::TensorList inputs);
void check_all_to_all_single(const at::Tensor& output, const at::Tensor& input);

// Throws c10::ValueError for async_op=True: an operator cannot return a work.
[[noreturn]] void refuse_async_op();

// Weight-only int8. For x [C, n]: codes of the target dtype [C, n], scales of x's dtype [C], zero points int64 [C].
std::tuple<at::Tensor, at::Tensor, at::Tensor> dynamically_quantize_per_channel(const at::Tensor& x, int64_t quant_min,
                                                                                int64_t quant_max,
                                                                                at::ScalarType target_dtype);

// For input [..., in] and weight [out, in]: output of input's dtype [..., out].
at::Tensor weight_only_int8_linear(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& scales,
                                   const std::optional<at::Tensor>& bias);

// Wire formats. Bytes of a message of numel elements.
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
