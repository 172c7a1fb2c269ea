// weight_only_int8_linear on the CPU: tensors to pointers, and the kernel that
// suits the number of rows:
//
//   rows       processor with VNNI                              others
//   1..4       exact sums of digits (digit_kernels.h); rows     sums in float32 straight from the codes
//              that do not fit them are summed in float32
//   5 and up   the same                                         codes widened block by block to float32,
//                                                               LibTorch's dense matrix product
//
// but bfloat16 of more than 64 rows, where the processor multiplies it, is
// widened block by block to bfloat16. Rows of other dtypes are converted to
// float32 before and from it after.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/cpu/Utils.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "ops/cpu/weight_only_int8/dense.h"
#include "ops/cpu/weight_only_int8/digits/digits.h"
#include "ops/cpu/weight_only_int8/row_kernels.h"
#include "ops/meta/weight_only_int8.h"

namespace narrowcast::cpu {
namespace {

// Beyond, LibTorch's product of bfloat16 is the faster one.
constexpr int64_t kMostBfloat16DigitRows = 64;

// Codes worth a thread's start: some microseconds of work.
constexpr int64_t kGrain = int64_t{1} << 17;

bool multiplies_bfloat16() {
  static const bool answer = [] {
    const auto capabilities = at::cpu::get_cpu_capabilities();
    const auto found = capabilities.find("avx512_bf16");
    return found != capabilities.end() && found->second.toBool();
  }();
  return answer;
}

std::vector<Row> rows_of(const at::Tensor& x, const at::Tensor& y) {
  std::vector<Row> rows;
  for (int64_t row = 0; row < y.size(0); ++row) {
    rows.push_back({x.const_data_ptr<float>() + row * x.size(1), y.mutable_data_ptr<float>() + row * y.size(1)});
  }
  return rows;
}

// Any number of rows, kMostFewRows at a time.
void multiply_directly(std::span<const Row> rows, const Int8Layer& layer) {
  constexpr int64_t kTile = 8;  // what the kernel likes best
  const int64_t tiles = (layer.outputs + kTile - 1) / kTile;
  const int64_t grain = std::max<int64_t>(1, kGrain / (kTile * std::max<int64_t>(1, layer.inputs)));
  at::parallel_for(0, tiles, grain, [&](int64_t begin, int64_t end) {
    const Range outputs{begin * kTile, std::min(end * kTile, layer.outputs)};
    for (size_t first = 0; first < rows.size(); first += kMostFewRows) {
      const size_t count = std::min<size_t>(kMostFewRows, rows.size() - first);
      multiply_few_rows(rows.data() + first, static_cast<int64_t>(count), layer, outputs);
    }
  });
}

void multiply_in_digits(const DigitKernels& kernels, std::vector<Row> rows, const Int8Layer& layer, int64_t planes) {
  const auto odd = std::stable_partition(rows.begin(), rows.end(),
                                         [&](const Row& row) { return kernels.fits(row.x, layer.inputs); });
  multiply_digits(kernels, {rows.begin(), odd}, layer, planes);
  multiply_directly({odd, rows.end()}, layer);
}

// x [rows, inputs] float32 -> y [rows, outputs] float32. `planes`: digits that x's own precision deserves.
void multiply_floats(const at::Tensor& x, const Int8Layer& layer, const at::Tensor& y, int64_t planes) {
  const DigitKernels* const digits = layer.inputs <= kMostDigitInputs ? digit_kernels() : nullptr;
  if (digits != nullptr && layer.inputs > 0) {
    multiply_in_digits(*digits, rows_of(x, y), layer, planes);
  } else if (x.size(0) <= kMostFewRows || layer.inputs == 0) {
    multiply_directly(rows_of(x, y), layer);
  } else {
    multiply_dense(x, layer, y);
  }
}

// x [rows, inputs] -> y [rows, outputs], contiguous, of one dtype.
void multiply(const at::Tensor& x, const Int8Layer& layer, const at::Tensor& y) {
  const bool is_bfloat16 = x.scalar_type() == at::kBFloat16;
  if (x.scalar_type() == at::kFloat) {
    multiply_floats(x, layer, y, 3);
  } else if (is_bfloat16 && x.size(0) > kMostBfloat16DigitRows && layer.inputs > 0 && multiplies_bfloat16()) {
    multiply_dense(x, layer, y);
  } else {
    const at::Tensor wide = at::empty(y.sizes(), y.options().dtype(at::kFloat));
    multiply_floats(x.to(at::kFloat), layer, wide, is_bfloat16 ? 2 : 3);
    y.copy_(wide);
  }
}

at::Tensor to_floats(const at::Tensor& values) { return values.to(at::kFloat).contiguous(); }

at::Tensor weight_only_int8_linear(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& scales,
                                   const std::optional<at::Tensor>& bias) {
  at::Tensor output = meta::weight_only_int8_linear(input, weight, scales, bias);
  if (output.numel() == 0) {
    return output;
  }
  const at::Tensor codes = weight.contiguous();
  const at::Tensor scales32 = to_floats(scales);
  const at::Tensor bias32 = bias.has_value() ? to_floats(*bias) : at::Tensor();
  const Int8Layer layer{codes.const_data_ptr<int8_t>(), scales32.const_data_ptr<float>(),
                        bias.has_value() ? bias32.const_data_ptr<float>() : nullptr, weight.size(1), weight.size(0)};
  const int64_t rows = output.numel() / layer.outputs;
  multiply(input.reshape({rows, layer.inputs}).contiguous(), layer, output.view({rows, layer.outputs}));
  return output;
}

}  // namespace

TORCH_LIBRARY_IMPL(narrowcast, CPU, m) { m.impl("weight_only_int8_linear", &weight_only_int8_linear); }

}  // namespace narrowcast::cpu
