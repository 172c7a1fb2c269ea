// What launches of weight_only_int8_linear choose a kernel by.
#pragma once

#include <cstdint>
#include <stdexcept>

#include "ops/cuda/rows/packs.h"
#include "ops/cuda/visit_float_type.cuh"
#include "ops/cuda/weight_only_int8/int8_layer.h"

namespace narrowcast::cuda {

// Whether all rows of codes and inputs begin where packs can be read, 16 codes and 16 inputs at a time.
inline bool rows_begin_at_packs(const Int8Layer& layer, const LayerRows& rows) {
  const auto is_aligned = [](const void* address) { return reinterpret_cast<uintptr_t>(address) % kPackBytes == 0; };
  return is_aligned(layer.codes) && is_aligned(rows.x) && layer.inputs % kPackBytes == 0;
}

// visitor(TypeName of the rows, TypeName of scales and bias). std::invalid_argument for others than Int8Layer has.
template <class Visitor>
void visit_layer_types(const Int8Layer& layer, const LayerRows& rows, const Visitor& visitor) {
  visit_narrow_float_type(rows.type, [&](auto row_type) {
    if (layer.type == rows.type) return visitor(row_type, row_type);
    if (layer.type == FloatType::kFloat32) return visitor(row_type, TypeName<float>());
    throw std::invalid_argument("scales must be float32 or of the rows' FloatType");
  });
}

}  // namespace narrowcast::cuda
