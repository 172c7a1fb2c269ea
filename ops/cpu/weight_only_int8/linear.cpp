// weight_only_int8_linear on the CPU: passes tensors as pointers to the kernel that suits the number of rows:
//
//   rows       processor with VNNI                              others
//   1..4       exact sums of digits (digit_kernels.h); rows    sums in float32, directly from the codes
//              that suit no digits are summed in float32
//   5 and up   the same                                         codes widened block by block to float32,
//                                                               LibTorch's dense matrix product
//
// Exception: for more than 64 rows of bfloat16 whose number of inputs is a multiple of 32, codes are widened block by
// block to bfloat16, if the processor has matrix instructions for it (AMX), or has no VNNI but multiplies bfloat16.
//
// Other rows that are not float32 are converted to it before and from it after, except for the digits of bfloat16. For
// float64 there is no separate kernel: LibTorch's operators compute the reference's expression.
#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/cpu/Utils.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "ops/cpu/weight_only_int8/digit_kernels.h"
#include "ops/cpu/weight_only_int8/digits.h"
#include "ops/cpu/weight_only_int8/int8_layer.h"
#include "ops/cpu/weight_only_int8/row_kernels.h"
#include "ops/operators/weight_only_int8.h"
#include "ops/operators/weight_only_int8_meta.h"

namespace narrowcast::cpu {
namespace {

// With more rows, LibTorch's product of bfloat16 is faster on processors with AMX.
constexpr int64_t kMostBfloat16Rows = 64;

// LibTorch's product of bfloat16 multiplies this many inputs at a time. If the number of inputs is not a multiple, it
// multiplies the beginning of the next row by zero, so that an Inf or NaN there becomes a NaN here (as of LibTorch
// 2.11).
constexpr int64_t kBfloat16Step = 32;

// Codes per thread, enough to start one for: some microseconds of work.
constexpr int64_t kProductGrain = int64_t{1} << 17;

// Bytes of codes that are widened at a time: they fit in a second-level cache, and the matrix product has its full
// speed.
constexpr int64_t kBlockBytes = int64_t{1} << 20;
constexpr int64_t kLeastBlock = 16;  // outputs

bool is_capable(const char* capability) {
  const auto capabilities = at::cpu::get_cpu_capabilities();
  const auto found = capabilities.find(capability);
  return found != capabilities.end() && found->second.toBool();
}

template <class T>
std::vector<Row<T>> rows_of(const at::Tensor& x, const at::Tensor& y) {
  std::vector<Row<T>> rows;
  for (int64_t row = 0; row < y.size(0); ++row) {
    rows.push_back({x.const_data_ptr<T>() + row * x.size(1), y.mutable_data_ptr<T>() + row * y.size(1)});
  }
  return rows;
}

// For any number of rows, kMostFewRows at a time.
void multiply_directly(std::span<const Row<float>> rows, const Int8Layer& layer) {
  constexpr int64_t kTile = 8;  // the kernel's best number of outputs
  const int64_t tiles = (layer.outputs + kTile - 1) / kTile;
  const int64_t grain = std::max<int64_t>(1, kProductGrain / (kTile * std::max<int64_t>(1, layer.inputs)));
  at::parallel_for(0, tiles, grain, [&](int64_t begin, int64_t end) {
    const Range outputs{begin * kTile, std::min(end * kTile, layer.outputs)};
    for (size_t first = 0; first < rows.size(); first += kMostFewRows) {
      const size_t count = std::min<size_t>(kMostFewRows, rows.size() - first);
      multiply_few_rows(rows.data() + first, static_cast<int64_t>(count), layer, outputs);
    }
  });
}

// The same for bfloat16, one row after the other, since few rows are summed in float32.
void multiply_directly(std::span<const Row<c10::BFloat16>> rows, const Int8Layer& layer) {
  std::vector<float> x(static_cast<size_t>(layer.inputs));
  std::vector<float> y(static_cast<size_t>(layer.outputs));
  for (const Row<c10::BFloat16>& row : rows) {
    std::copy_n(row.x, layer.inputs, x.begin());
    const Row<float> wide{x.data(), y.data()};
    multiply_directly(std::span(&wide, 1), layer);
    std::copy_n(y.begin(), layer.outputs, row.y);
  }
}

// The number of planes of digits that each row needs.
template <class T>
std::vector<int64_t> planes_of(const std::vector<Row<T>>& rows, int64_t inputs) {
  std::vector<int64_t> planes(rows.size());
  const int64_t grain = std::max<int64_t>(1, kProductGrain / inputs);
  at::parallel_for(0, static_cast<int64_t>(rows.size()), grain, [&](int64_t begin, int64_t end) {
    for (auto row = static_cast<size_t>(begin); row < static_cast<size_t>(end); ++row) {
      planes[row] = digit_kernels<T>()->planes_for(rows[row].x, inputs);
    }
  });
  return planes;
}

template <class T>
void multiply_in_digits(const std::vector<Row<T>>& rows, const Int8Layer& layer) {
  const std::vector<int64_t> planes = planes_of(rows, layer.inputs);
  std::array<std::vector<Row<T>>, 4> by_planes;
  for (size_t row = 0; row < rows.size(); ++row) by_planes[static_cast<size_t>(planes[row])].push_back(rows[row]);
  multiply_directly(by_planes[0], layer);
  multiply_digits<T>(by_planes[2], layer, 2);
  multiply_digits<T>(by_planes[3], layer, 3);
}

// Outputs per block: at least one block for each thread, if there are enough outputs.
int64_t block_outputs(const Int8Layer& layer, int64_t element_size) {
  const int64_t in_cache = kBlockBytes / element_size / layer.inputs / kLeastBlock * kLeastBlock;
  const int64_t per_thread = (layer.outputs + at::get_num_threads() - 1) / at::get_num_threads();
  return std::clamp(std::min(in_cache, per_thread), std::min(kLeastBlock, layer.outputs), layer.outputs);
}

// One thread's memory: the widened codes of a block, and the product of all rows with them.
struct Scratch {
  Scratch(const at::Tensor& x, int64_t block)
      : codes(at::empty({block, x.size(1)}, x.options())), product(at::empty({x.size(0) * block}, x.options())) {}
  at::Tensor codes;
  at::Tensor product;
};

template <class T>
void multiply_block(const at::Tensor& x, const Int8Layer& layer, Range outputs, const Scratch& scratch, T* y) {
  const int64_t width = outputs.end - outputs.begin;
  widen_codes(layer.codes + outputs.begin * layer.inputs, width * layer.inputs, scratch.codes.mutable_data_ptr<T>());
  at::Tensor product = scratch.product.narrow(0, 0, x.size(0) * width).view({x.size(0), width});
  at::mm_out(product, x, scratch.codes.narrow(0, 0, width).t());
  for (int64_t row = 0; row < x.size(0); ++row) {
    scale_outputs(product.const_data_ptr<T>() + row * width, layer, outputs, y + row * layer.outputs + outputs.begin);
  }
}

// Each thread computes whole blocks alone, so that threads wait for each other only once.
template <class T>
void multiply_blocks(const at::Tensor& x, const Int8Layer& layer, T* y) {
  const int64_t block = block_outputs(layer, sizeof(T));
  at::parallel_for(0, (layer.outputs + block - 1) / block, 1, [&](int64_t begin, int64_t end) {
    const at::AutoDispatchBelowADInplaceOrView no_autograd;  // Each thread has its own dispatch state.
    const Scratch scratch(x, block);
    for (int64_t first = begin * block; first < std::min(end * block, layer.outputs); first += block) {
      multiply_block(x, layer, {first, std::min(first + block, layer.outputs)}, scratch, y);
    }
  });
}

// y [rows, outputs] for x [rows, inputs], inputs >= 1; both are float32 or both bfloat16, contiguous. Codes are widened
// to x's dtype block by block, so that the widened codes stay in the cache. In bfloat16 the product is rounded before
// it is scaled, as in the reference. The order of sums is LibTorch's.
void multiply_dense(const at::Tensor& x, const Int8Layer& layer, const at::Tensor& y) {
  if (x.scalar_type() == at::kFloat) {
    multiply_blocks(x, layer, y.mutable_data_ptr<float>());
  } else {
    multiply_blocks(x, layer, y.mutable_data_ptr<c10::BFloat16>());
  }
}

template <class T>
bool has_digits(const Int8Layer& layer) {
  return layer.inputs > 0 && layer.inputs <= kMostDigitInputs && digit_kernels<T>() != nullptr;
}

// x [rows, inputs] float32 -> y [rows, outputs] float32.
void multiply_floats(const at::Tensor& x, const Int8Layer& layer, const at::Tensor& y) {
  if (has_digits<float>(layer)) {
    multiply_in_digits(rows_of<float>(x, y), layer);
  } else if (x.size(0) <= kMostFewRows || layer.inputs == 0) {
    multiply_directly(rows_of<float>(x, y), layer);
  } else {
    multiply_dense(x, layer, y);
  }
}

bool is_for_dense_bfloat16(const at::Tensor& x, const Int8Layer& layer) {
  static const bool kHasBfloat16 = is_capable("avx512_bf16");
  static const bool kHasAmx = is_capable("amx_bf16");
  return x.size(0) > kMostBfloat16Rows && layer.inputs > 0 && layer.inputs % kBfloat16Step == 0 &&
         (kHasAmx || (kHasBfloat16 && !has_digits<c10::BFloat16>(layer)));
}

// x [rows, inputs] -> y [rows, outputs], contiguous, of one dtype.
void multiply(const at::Tensor& x, const Int8Layer& layer, const at::Tensor& y) {
  const bool is_bfloat16 = x.scalar_type() == at::kBFloat16;
  if (x.scalar_type() == at::kFloat) {
    multiply_floats(x, layer, y);
  } else if (is_bfloat16 && is_for_dense_bfloat16(x, layer)) {
    multiply_dense(x, layer, y);
  } else if (is_bfloat16 && has_digits<c10::BFloat16>(layer)) {
    multiply_in_digits(rows_of<c10::BFloat16>(x, y), layer);
  } else {
    const at::Tensor wide = at::empty(y.sizes(), y.options().dtype(at::kFloat));
    multiply_floats(x.to(at::kFloat), layer, wide);
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
  if (input.scalar_type() == at::kDouble) {
    composite::linear_float64(input, weight, scales, bias, output);
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
