#include "ops/meta/weight_only_int8.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <limits>

namespace narrowcast::meta {
namespace {

bool is_narrow_float(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf;
}

at::Tensor empty(c10::SymIntArrayRef sizes, const at::Tensor& like, at::ScalarType dtype) {
  return at::empty_symint(sizes, like.options().dtype(dtype).memory_format(at::MemoryFormat::Contiguous));
}

void check_rows(const at::Tensor& x) {
  TORCH_CHECK_TYPE(is_narrow_float(x.scalar_type()), "x must be float32, bfloat16 or float16, not ", x.scalar_type());
  TORCH_CHECK_VALUE(x.dim() == 2, "x must have 2 dimensions, but has shape ", x.sym_sizes());
  TORCH_CHECK_VALUE(x.sym_size(1).sym_ne(0).expect_true(__FILE__, __LINE__),
                    "x has channels without elements: its shape is ", x.sym_sizes());
}

template <class Code>
void check_range(int64_t quant_min, int64_t quant_max, at::ScalarType target_dtype) {
  constexpr int64_t kLeast = std::numeric_limits<Code>::min();
  constexpr int64_t kGreatest = std::numeric_limits<Code>::max();
  TORCH_CHECK_VALUE(quant_min >= kLeast, "quant_min must be at least ", kLeast, " for target_dtype ", target_dtype,
                    ", but is ", quant_min);
  TORCH_CHECK_VALUE(quant_max <= kGreatest, "quant_max must be at most ", kGreatest, " for target_dtype ", target_dtype,
                    ", but is ", quant_max);
  TORCH_CHECK_VALUE(quant_min < quant_max, "quant_min must be less than quant_max, but they are ", quant_min, " and ",
                    quant_max);
}

void check_target(const at::Tensor& x, int64_t quant_min, int64_t quant_max, at::ScalarType target_dtype) {
  if (target_dtype == at::kChar) {
    check_range<int8_t>(quant_min, quant_max, target_dtype);
  } else if (target_dtype == at::kByte) {
    check_range<uint8_t>(quant_min, quant_max, target_dtype);
  } else {
    TORCH_CHECK_TYPE(target_dtype == at::kShort && x.scalar_type() == at::kFloat,
                     "target_dtype must be int8 or uint8, or int16 for float32 x, not ", target_dtype, " for ",
                     x.scalar_type(), " x");
    check_range<int16_t>(quant_min, quant_max, target_dtype);
  }
}

}  // namespace

std::tuple<at::Tensor, at::Tensor, at::Tensor> dynamically_quantize_per_channel(const at::Tensor& x, int64_t quant_min,
                                                                                int64_t quant_max,
                                                                                at::ScalarType target_dtype) {
  check_rows(x);
  check_target(x, quant_min, quant_max, target_dtype);
  const c10::SymInt channels = x.sym_size(0);
  return {empty(x.sym_sizes(), x, target_dtype), empty({channels}, x, x.scalar_type()),
          empty({channels}, x, at::kLong)};
}

TORCH_LIBRARY_IMPL(narrowcast, Meta, m) {
  m.impl("dynamically_quantize_per_channel", &dynamically_quantize_per_channel);
}

}  // namespace narrowcast::meta
