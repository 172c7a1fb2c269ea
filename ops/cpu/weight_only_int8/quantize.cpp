// dynamically_quantize_per_channel on the CPU: passes tensors as pointers, and divides the work among threads. Each row
// is read from memory once: when it is quantised, it is still in the cache from the search for its scale.
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <algorithm>
#include <cstdint>
#include <tuple>

#include "ops/cpu/weight_only_int8/quantize_kernels.h"
#include "ops/operators/weight_only_int8.h"
#include "ops/operators/weight_only_int8_meta.h"

namespace narrowcast::cpu {
namespace {

// Elements per thread, enough to start one for: some microseconds of work.
constexpr int64_t kRangeGrain = int64_t{1} << 15;

// The rows of x, their scales and their codes. A row's elements are contiguous.
template <class T, class Code>
struct Rows {
  const T* x;
  int64_t stride;  // from one row of x to the next, in elements
  int64_t count;
  int64_t size;  // of each row, at least 1
  CodeRange range;
  T* scales;
  Code* codes;
};

// Each thread processes whole rows.
template <class T, class Code>
void quantize_rows(const Rows<T, Code>& rows) {
  at::parallel_for(0, rows.count, std::max<int64_t>(1, kRangeGrain / rows.size), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* const x = rows.x + row * rows.stride;
      const T scale = codec::symmetric_scale<T>(find_largest_magnitude(x, rows.size), rows.range);
      rows.scales[row] = scale;
      quantize_symmetric(x, rows.size, scale, rows.range, rows.codes + row * rows.size);
    }
  });
}

// NaN if either number is NaN.
float larger(float a, float b) { return b > a || b != b ? b : a; }

// All threads work on each row.
template <class T, class Code>
void quantize_long_rows(const Rows<T, Code>& rows) {
  for (int64_t row = 0; row < rows.count; ++row) {
    const T* const x = rows.x + row * rows.stride;
    const auto join_part = [x](int64_t begin, int64_t end, float largest) {
      return larger(largest, find_largest_magnitude(x + begin, end - begin));
    };
    const float largest = at::parallel_reduce(0, rows.size, kRangeGrain, 0.0F, join_part, larger);
    const T scale = codec::symmetric_scale<T>(largest, rows.range);
    rows.scales[row] = scale;
    Code* const codes = rows.codes + row * rows.size;
    at::parallel_for(0, rows.size, kRangeGrain, [&](int64_t begin, int64_t end) {
      quantize_symmetric(x + begin, end - begin, scale, rows.range, codes + begin);
    });
  }
}

template <class T, class Code>
void quantize_into(const at::Tensor& x, CodeRange range, const at::Tensor& codes, const at::Tensor& scales) {
  const Rows<T, Code> rows{
      x.const_data_ptr<T>(),         x.stride(0), x.size(0), x.size(1), range, scales.mutable_data_ptr<T>(),
      codes.mutable_data_ptr<Code>()};
  if (rows.count < at::get_num_threads()) {
    quantize_long_rows(rows);
  } else {
    quantize_rows(rows);
  }
}

void quantize_floats_into(const at::Tensor& x, CodeRange range, const at::Tensor& codes, const at::Tensor& scales) {
  if (codes.scalar_type() == at::kShort) {
    quantize_into<float, int16_t>(x, range, codes, scales);
  } else if (codes.scalar_type() == at::kByte) {
    quantize_into<float, uint8_t>(x, range, codes, scales);
  } else {
    quantize_into<float, int8_t>(x, range, codes, scales);
  }
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> dynamically_quantize_per_channel(const at::Tensor& x, int64_t quant_min,
                                                                                int64_t quant_max,
                                                                                at::ScalarType target_dtype) {
  auto outputs = meta::dynamically_quantize_per_channel(x, quant_min, quant_max, target_dtype);
  const auto& [codes, scales, zero_points] = outputs;
  zero_points.zero_();
  const CodeRange range{static_cast<int32_t>(quant_min), static_cast<int32_t>(quant_max)};
  if (x.scalar_type() == at::kDouble) {
    composite::quantize_per_channel_float64(x, range, codes, scales);
    return outputs;
  }
  const at::Tensor rows = x.stride(1) == 1 ? x : x.contiguous();
  if (x.scalar_type() == at::kFloat) {
    quantize_floats_into(rows, range, codes, scales);
    return outputs;
  }
  AT_DISPATCH_REDUCED_FLOATING_TYPES(x.scalar_type(), "dynamically_quantize_per_channel", [&] {
    if (codes.scalar_type() == at::kByte) {
      quantize_into<scalar_t, uint8_t>(rows, range, codes, scales);
    } else {
      quantize_into<scalar_t, int8_t>(rows, range, codes, scales);
    }
  });
  return outputs;
}

}  // namespace

TORCH_LIBRARY_IMPL(narrowcast, CPU, m) {
  m.impl("dynamically_quantize_per_channel", &dynamically_quantize_per_channel);
}

}  // namespace narrowcast::cpu
