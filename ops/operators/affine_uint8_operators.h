// The affine uint8 operators of a device: what is the same for all devices. A device has kernels over rows.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <cstdint>
#include <tuple>

#include "ops/operators/affine_uint8_meta.h"

namespace narrowcast {

// The qparams of an operator, and the name of its zero points in the schema.
struct AffineQparamTensors {
  const at::Tensor& scales;
  const at::Tensor& zero_points;
  const char* name_of_zero_points;
};

// `Kernels` has, with one channel per row:
//   // The qparams of `rows` rows of equal size, at least one element, of a dense tensor.
//   static void choose_for_rows(const at::Tensor& dense, int64_t rows, const at::Tensor& scales,
//                               const at::Tensor& zero_points);
//   // Rows are the equal parts of the contiguous tensor, as many as there are scales. The tensor may be empty.
//   static void quantize_rows(const at::Tensor& x, const AffineQparamTensors& qparams, const at::Tensor& codes);
//   static void dequantize_rows(const at::Tensor& q, const AffineQparamTensors& qparams, const at::Tensor& decoded);
template <class Kernels>
struct AffineUint8Operators {
  static std::tuple<at::Tensor, at::Tensor> choose_qparams_per_tensor(const at::Tensor& x) {
    auto outputs = meta::choose_qparams_per_tensor(x);
    const auto& [scale, zero_point] = outputs;
    if (x.numel() == 0) {
      scale.fill_(1);
      zero_point.zero_();
      return outputs;
    }
    // Elements may be in any order, but each must be there once.
    Kernels::choose_for_rows(x.is_non_overlapping_and_dense() ? x : x.contiguous(), 1, scale, zero_point);
    return outputs;
  }

  static std::tuple<at::Tensor, at::Tensor> choose_qparams_per_channel(const at::Tensor& x) {
    auto outputs = meta::choose_qparams_per_channel(x);
    const auto& [scales, zero_points] = outputs;
    if (x.size(0) > 0) Kernels::choose_for_rows(x.contiguous(), x.size(0), scales, zero_points);
    return outputs;
  }

  static at::Tensor quantize_per_tensor(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& zero_point) {
    at::Tensor codes = meta::quantize_per_tensor(x, scale, zero_point);
    Kernels::quantize_rows(x.contiguous(), {scale, zero_point, "zero_point"}, codes);
    return codes;
  }

  static at::Tensor quantize_per_channel(const at::Tensor& x, const at::Tensor& scales, const at::Tensor& zero_points) {
    at::Tensor codes = meta::quantize_per_channel(x, scales, zero_points);
    Kernels::quantize_rows(x.contiguous(), {scales, zero_points, "zero_points"}, codes);
    return codes;
  }

  static at::Tensor dequantize_per_tensor(const at::Tensor& q, const at::Tensor& scale, const at::Tensor& zero_point) {
    at::Tensor decoded = meta::dequantize_per_tensor(q, scale, zero_point);
    Kernels::dequantize_rows(q.contiguous(), {scale, zero_point, "zero_point"}, decoded);
    return decoded;
  }

  static at::Tensor dequantize_per_channel(const at::Tensor& q, const at::Tensor& scales,
                                           const at::Tensor& zero_points) {
    at::Tensor decoded = meta::dequantize_per_channel(q, scales, zero_points);
    Kernels::dequantize_rows(q.contiguous(), {scales, zero_points, "zero_points"}, decoded);
    return decoded;
  }

  static void add_to(torch::Library& library) {
    library.impl("choose_qparams_per_tensor", &choose_qparams_per_tensor);
    library.impl("choose_qparams_per_channel", &choose_qparams_per_channel);
    library.impl("quantize_per_tensor", &quantize_per_tensor);
    library.impl("quantize_per_channel", &quantize_per_channel);
    library.impl("dequantize_per_tensor", &dequantize_per_tensor);
    library.impl("dequantize_per_channel", &dequantize_per_channel);
  }
};

}  // namespace narrowcast
