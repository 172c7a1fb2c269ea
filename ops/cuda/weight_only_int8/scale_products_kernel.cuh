// Products of the widened codes to outputs of the layer.
#pragma once

#include <cstdint>

#include "ops/codec/host_device.h"
#include "ops/cuda/rows/lane.h"
#include "ops/cuda/rows/row_parts.h"
#include "ops/cuda/weight_only_int8/int8_layer.h"
#include "ops/cuda/weight_only_int8/output_scale.h"

namespace narrowcast::cuda {

template <class T, class S>
struct ScaleProducts {
  static constexpr int64_t kPart = 4096;

  ProductColumns columns;
  OutputScales<S> scales;
  T* y;              // [rows, outputs] of the layer
  int64_t of_layer;  // outputs

  // A part of a row of products.
  NARROWCAST_HOST_DEVICE void operator()(RowPart part, Lane lane) const {
    const int64_t first = columns.first + part.first - part.row * columns.outputs;
    for (int i = lane.rank; i < part.size; i += lane.team) {
      const float product = columns.products[part.first + i];
      y[part.row * of_layer + first + i] = static_cast<T>(scales.at(first + i).apply(product));
    }
  }
};

}  // namespace narrowcast::cuda
