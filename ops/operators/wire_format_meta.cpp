#include "ops/operators/wire_format_meta.h"

#include <ATen/ops/empty_like.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <narrowcast/errors.h>
#include <narrowcast/levels.h>
#include <narrowcast/quantized_reduce_scatter.h>
#include <narrowcast/wire_format.h>
#include "ops/codec/wire_format.h"
#include "ops/operators/meta.h"

namespace narrowcast::meta {
namespace {

at::Tensor decode_kernel(const at::Tensor& bytes, std::string_view format, c10::SymInt numel) {
  return decode(bytes, format, numel);
}

void check_quantized_all_reduce_kernel(const at::Tensor& x, std::string_view format, std::string_view,
                                       std::string_view levels) {
  check_quantized_all_reduce(x, format, levels);
}

at::Tensor quantized_all_reduce_kernel(const at::Tensor& x, std::string_view format, std::string_view,
                                       std::string_view levels) {
  return quantized_all_reduce(x, format, levels);
}

void check_quantized_reduce_scatter_kernel(const at::Tensor& shard, const at::Tensor& input, std::string_view format,
                                           std::string_view op, std::string_view) {
  check_quantized_reduce_scatter(shard, input, format, op);
}

void check_dense(const char* name, const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(tensor.layout() == at::kStrided, name, " must be dense, but has layout ", tensor.layout());
}

}  // namespace

c10::SymInt encoded_size(const c10::SymInt& numel, std::string_view format) {
  const WireFormat wire_format = parse_wire_format(format);
  TORCH_CHECK_VALUE(numel.sym_ge(0).expect_true(__FILE__, __LINE__), "numel must be at least 0, not ", numel);
  return codec::wire::visit(wire_format, [&](auto type) { return codec::wire::encoded_size<decltype(type)>(numel); });
}

at::Tensor encode(const at::Tensor& x, std::string_view format, std::optional<int64_t>, int64_t step, int64_t offset) {
  check_float("x", x);
  TORCH_CHECK_VALUE(step >= 0, "step must be at least 0, not ", step);
  TORCH_CHECK_VALUE(offset >= 0, "offset must be at least 0, not ", offset);
  return empty({encoded_size(x.sym_numel(), format)}, x, at::kByte);
}

at::Tensor decode(const at::Tensor& bytes, std::string_view format, const c10::SymInt& numel) {
  const c10::SymInt size = encoded_size(numel, format);
  TORCH_CHECK_TYPE(bytes.scalar_type() == at::kByte, "bytes must be uint8, not ", bytes.scalar_type());
  TORCH_CHECK_VALUE(bytes.dim() == 1, "bytes must have 1 dimension, but has shape ", bytes.sym_sizes());
  NARROWCAST_CHECK_INPUT(bytes.sym_numel().sym_eq(size).expect_true(__FILE__, __LINE__), "bytes holds ",
                         bytes.sym_numel(), " bytes, but ", numel, " elements in ", format, " take ", size);
  return empty({numel}, bytes, at::kFloat);
}

void check_quantized_all_reduce(const at::Tensor& x, std::string_view format, std::string_view levels) {
  parse_wire_format(format);
  parse_levels(levels);
  check_float("x", x);
  check_dense("x", x);
}

at::Tensor quantized_all_reduce(const at::Tensor& x, std::string_view format, std::string_view levels) {
  check_quantized_all_reduce(x, format, levels);
  return at::empty_like(x, at::MemoryFormat::Contiguous);
}

void check_quantized_reduce_scatter(const at::Tensor& shard, const at::Tensor& input, std::string_view format,
                                    std::string_view op) {
  parse_wire_format(format);
  parse_reduction(op);
  check_float("shard", shard);
  check_float("input", input);
  check_dense("shard", shard);
  check_dense("input", input);
  TORCH_CHECK_VALUE(shard.device() == input.device(), "shard and input must be on one device, but are on ",
                    shard.device(), " and ", input.device());
}

TORCH_LIBRARY_IMPL(narrowcast, Meta, m) {
  m.impl("encode", &encode);
  m.impl("decode", &decode_kernel);
  m.impl("quantized_all_reduce_", &check_quantized_all_reduce_kernel);
  m.impl("quantized_all_reduce", &quantized_all_reduce_kernel);
  m.impl("quantized_reduce_scatter_", &check_quantized_reduce_scatter_kernel);
}

}  // namespace narrowcast::meta
