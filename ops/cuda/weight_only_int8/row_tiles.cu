#include <type_traits>

#include "ops/cuda/launch.h"
#include "ops/cuda/weight_only_int8/launch_linear.h"
#include "ops/cuda/weight_only_int8/matrix_units.cuh"
#include "ops/cuda/weight_only_int8/row_tiles_kernel.cuh"
#include "ops/cuda/weight_only_int8/visit_layer_types.cuh"

namespace narrowcast::cuda {
namespace {

// Of T the rows, of S scales and bias.
template <class T, class S>
struct RowTiles {
  const Int8Layer& layer;
  const LayerRows& rows;
  cudaStream_t stream;

  template <int kUnits>
  void launch() const {
    constexpr int64_t kRows = kUnits * kRowsOfUnit;
    const int64_t tiles = (layer.outputs + kOutputsOfTile - 1) / kOutputsOfTile * ((rows.rows + kRows - 1) / kRows);
    multiply_row_tiles_kernel<MatrixUnits<T>, S, kUnits>
        <<<static_cast<unsigned int>(tiles), kThreadsOfTile, 0, stream>>>(layer, static_cast<const T*>(rows.x),
                                                                          rows.rows, static_cast<T*>(rows.y));
    check_launch("weight_only_int8_linear");
  }

  void launch_fitting() const {
    if (rows.rows <= kRowsOfUnit) return launch<1>();
    if (rows.rows <= 2 * kRowsOfUnit) return launch<2>();
    launch<4>();
  }
};

}  // namespace

bool suits_matrix_units(const Int8Layer& layer, const LayerRows& rows) {
  const bool has_16_bits = rows.type == FloatType::kBfloat16 || rows.type == FloatType::kFloat16;
  return has_16_bits && rows_begin_at_packs(layer, rows);
}

void launch_multiply_row_tiles(const Int8Layer& layer, const LayerRows& rows, cudaStream_t stream) {
  if (!suits_matrix_units(layer, rows)) throw std::invalid_argument("rows do not suit the matrix units");
  if (rows.rows == 0 || layer.outputs == 0) return;
  visit_layer_types(layer, rows, [&](auto row_type, auto scale_type) {
    using T = typename decltype(row_type)::type;
    using S = typename decltype(scale_type)::type;
    if constexpr (!std::is_same_v<T, float>) RowTiles<T, S>{layer, rows, stream}.launch_fitting();
  });
}

}  // namespace narrowcast::cuda
