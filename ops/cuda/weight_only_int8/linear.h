// The kernels of weight_only_int8_linear, their arguments, and the conditions on which a kernel is chosen. Launches are
// enqueued on a stream of the current device, independent of LibTorch. No function waits. All pointers are to device
// memory and are aligned for their elements only. Errors:
// - std::invalid_argument: rows are not float32, bfloat16 or float16.
// - std::runtime_error: a kernel cannot be launched.
#pragma once

#include <cstdint>
#include <stdexcept>

#include "ops/codec/host_device.h"
#include "ops/cuda/launch/launch_arguments.h"
#include "ops/cuda/launch/vectors.h"

namespace narrowcast::cuda {

// A linear layer: output o of a row x is (sum over k of x[k] * codes[o][k]) * scales[o] + bias[o].
struct Int8Layer {
  const int8_t* codes;  // [outputs, inputs]
  const void* scales;   // [outputs]
  const void* bias;     // [outputs], or null
  FloatType type;       // Type of scales and bias: float32, or the rows' type.
  int64_t inputs;
  int64_t outputs;
};

// Rows of inputs and of outputs, of one type, contiguous: x [rows, inputs], y [rows, outputs].
struct LayerRows {
  const void* x;
  void* y;
  FloatType type;
  int64_t rows;
};

// The products of rows with some of the layer's outputs, [rows, outputs] float32.
struct ProductColumns {
  const float* products;
  int64_t first;  // The first of these outputs.
  int64_t outputs;
};

// The conversion of the sum of an output's products to the output.
struct OutputScale {
  float scale;
  float shift;

  NARROWCAST_HOST_DEVICE float apply(float sum) const { return sum * scale + shift; }
};

// The scale and bias of each output of a layer, of type S. `bias` may be null.
template <class S>
struct OutputScales {
  const S* scales;
  const S* bias;

  // Without a bias the shift is -0, which changes no sum.
  NARROWCAST_HOST_DEVICE OutputScale at(int64_t output) const {
    return {static_cast<float>(scales[output]), bias == nullptr ? -0.0F : static_cast<float>(bias[output])};
  }
};

// Whether packs of 16 codes and of 16 inputs can be read from the beginning of all rows of codes and inputs.
inline bool rows_begin_at_packs(const Int8Layer& layer, const LayerRows& rows) {
  using CodePack = Pack<int8_t, kPackBytes>;
  return is_aligned<CodePack>(layer.codes) && is_aligned<CodePack>(rows.x) && layer.inputs % kPackBytes == 0;
}

// Calls visitor(FloatTypeConstant of the rows, FloatTypeConstant of scales and bias). Throws std::invalid_argument for
// types that Int8Layer does not permit.
template <class Visitor>
void visit_layer_types(const Int8Layer& layer, const LayerRows& rows, const Visitor& visitor) {
  visit_narrow_float_type(rows.type, [&](auto of_rows) {
    if (layer.type == rows.type) return visitor(of_rows, of_rows);
    if (layer.type == FloatType::kFloat32) return visitor(of_rows, FloatTypeConstant<FloatType::kFloat32>());
    throw std::invalid_argument("scales must be float32 or of the rows' FloatType");
  });
}

// y of each row of x, summed in float32 directly from the codes, eight rows at a time. The order of a sum's terms
// depends only on the number of inputs, the alignment of the pointers, and whether there are 1, 2, 3 to 4, or more
// rows.
void launch_multiply_few_rows(const Int8Layer& layer, const LayerRows& rows, Stream stream);

// Writes these outputs of y: products scaled and shifted. rows.x is not used.
void launch_scale_products(const Int8Layer& layer, const ProductColumns& columns, const LayerRows& rows, Stream stream);

}  // namespace narrowcast::cuda
