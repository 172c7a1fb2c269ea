// weight_only_int8_linear on CUDA: passes tensors as pointers to the kernel that suits the rows.
//
// rows        kernel
// few         sums in float32, directly from the codes
// more        sums by the matrix units, from codes that are widened while they are loaded
// many        widens all codes to the rows' dtype in memory, and scales LibTorch's matrix product in float32
// float64     the reference's expression in LibTorch's operators
//
// Work is enqueued on the current stream of the input's device; the host does not wait for it.
#include <ATen/core/Tensor.h>
#include <ATen/ops/mm.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <algorithm>
#include <cstdint>
#include <optional>

#include "ops/cuda/launch/tensor_arguments.h"
#include "ops/cuda/weight_only_int8/linear.h"
#include "ops/cuda/weight_only_int8/row_tiles.h"
#include "ops/operators/weight_only_int8.h"
#include "ops/operators/weight_only_int8_meta.h"

namespace narrowcast::cuda {
namespace {

// Up to this many rows, reading the codes takes longer than summing the products one by one. On an H200, 4 rows of 4096
// x 4096 took longer than 16 rows by the matrix units; 3 rows are summed by the kernel for 4.
constexpr int64_t kMostFewRows = 2;

// Up to this many rows, one or two passes over the codes cost less than writing the widened codes.
constexpr int64_t kMostTiledRows = 64;

// The same limit for rows that the matrix units cannot take.
constexpr int64_t kMostUntiledRows = 16;

// Memory for widened codes; layers that need more are widened in parts.
constexpr int64_t kMostWidenedBytes = int64_t{64} << 20;

// A layer's dense tensors, and pointers to them.
class Layer {
 public:
  Layer(const at::Tensor& weight, const at::Tensor& scales, const std::optional<at::Tensor>& bias,
        at::ScalarType row_type)
      : weight_(weight.contiguous()), type_(type_for(scales, bias, row_type)), scales_(dense(scales)) {
    if (bias.has_value()) bias_ = dense(*bias);
  }

  const at::Tensor& weight() const { return weight_; }

  Int8Layer pointers() const {
    return {weight_.const_data_ptr<int8_t>(),
            scales_.const_data_ptr(),
            bias_.defined() ? bias_.const_data_ptr() : nullptr,
            float_type_of(type_),
            weight_.size(1),
            weight_.size(0)};
  }

 private:
  // Kernels read scales and bias in the rows' dtype if both have it, else as float32.
  static at::ScalarType type_for(const at::Tensor& scales, const std::optional<at::Tensor>& bias,
                                 at::ScalarType row_type) {
    const bool as_rows = scales.scalar_type() == row_type && (!bias.has_value() || bias->scalar_type() == row_type);
    return as_rows ? row_type : at::kFloat;
  }

  at::Tensor dense(const at::Tensor& values) const { return values.to(type_).contiguous(); }

  at::Tensor weight_;
  at::ScalarType type_;
  at::Tensor scales_;
  at::Tensor bias_;
};

// The product of x [rows, inputs] and the transpose of some rows of the weight. It is float32, so that float16 does not
// overflow before it is scaled. Autocast is off, since it would compute float32 rows in its own dtype.
at::Tensor widened_products(const at::Tensor& x, const at::Tensor& weight) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const at::Tensor widened = weight.to(x.scalar_type()).t();
  return x.scalar_type() == at::kFloat ? at::mm(x, widened) : at::mm(x, widened, at::kFloat);
}

void multiply_many_rows(const at::Tensor& x, const Layer& layer, const LayerRows& rows, Stream stream) {
  const Int8Layer pointers = layer.pointers();
  const int64_t bytes_per_output = pointers.inputs * static_cast<int64_t>(x.element_size());
  const int64_t most = std::max<int64_t>(1, kMostWidenedBytes / bytes_per_output);
  for (int64_t first = 0; first < pointers.outputs; first += most) {
    const int64_t outputs = std::min(most, pointers.outputs - first);
    const at::Tensor products = widened_products(x, layer.weight().narrow(0, first, outputs)).contiguous();
    launch_scale_products(pointers, {products.const_data_ptr<float>(), first, outputs}, rows, stream);
  }
}

void multiply(const at::Tensor& x, const Layer& layer, const LayerRows& rows, Stream stream) {
  const Int8Layer pointers = layer.pointers();
  const bool tiled = suits_matrix_units(pointers, rows);
  if (rows.rows <= kMostFewRows || pointers.inputs == 0 || (!tiled && rows.rows <= kMostUntiledRows)) {
    launch_multiply_few_rows(pointers, rows, stream);
  } else if (tiled && rows.rows <= kMostTiledRows) {
    launch_multiply_row_tiles(pointers, rows, stream);
  } else {
    multiply_many_rows(x, layer, rows, stream);
  }
}

at::Tensor weight_only_int8_linear(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& scales,
                                   const std::optional<at::Tensor>& bias) {
  at::Tensor output = meta::weight_only_int8_linear(input, weight, scales, bias);
  if (output.numel() == 0) return output;
  const c10::cuda::CUDAGuard guard(input.device());
  if (input.scalar_type() == at::kDouble) {
    composite::linear_float64(input, weight, scales, bias, output);
    return output;
  }
  const Stream stream = c10::cuda::getCurrentCUDAStream();
  const Layer layer(weight, scales, bias, input.scalar_type());
  const int64_t row_count = output.numel() / weight.size(0);
  const at::Tensor x = input.reshape({row_count, weight.size(1)}).contiguous();
  const LayerRows rows{x.const_data_ptr(), output.mutable_data_ptr(), float_type_of(x.scalar_type()), row_count};
  multiply(x, layer, rows, stream);
  return output;
}

}  // namespace

TORCH_LIBRARY_IMPL(narrowcast, CUDA, m) { m.impl("weight_only_int8_linear", &weight_only_int8_linear); }

}  // namespace narrowcast::cuda
