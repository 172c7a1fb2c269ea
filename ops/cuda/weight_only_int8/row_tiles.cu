#include "ops/cuda/weight_only_int8/row_tiles.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <stdexcept>
#include <type_traits>

#include "ops/cuda/launch/launch.cuh"
#include "ops/cuda/weight_only_int8/row_tiles_kernel.cuh"

namespace narrowcast::cuda {
namespace {

// The GPU's matrix units: the product that one instruction of a warp computes. Needs sm_80.
//
// Element is the type of the factors. Two of them make a word, the first in its lower half.
//
// add(x, y): the sums of two pairs.
//
// multiply_add(c, a, b): c [16, 8] += a [16, 16] * b [16, 8], spread over the warp's lanes. With g = lane / 4 and p =
// lane % 4, a lane holds
//   a: words (g, k), (g + 8, k), (g, k + 8), (g + 8, k + 8) for k = 2p, 2p + 1
//   b: words (k, g), (k + 8, g) for the same k
//   c: float32 (g, 2p), (g, 2p + 1), (g + 8, 2p), (g + 8, 2p + 1)
// All lanes must call it together; "volatile" keeps the instruction in place. Source: PTX ISA, mma.m16n8k16 with
// floating point type.
template <class T>
struct MatrixUnits;

template <>
struct MatrixUnits<__nv_bfloat16> {
  using Element = __nv_bfloat16;
  static constexpr bool kBfloat16 = true;

  static __device__ __forceinline__ uint32_t add(uint32_t x, uint32_t y) {
    constexpr uint32_t kOnes = 0x3F803F80U;  // sm_80 can add bfloat16 only as part of a multiplication.
    uint32_t sum;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(x), "r"(kOnes), "r"(y));
    return sum;
  }

  static __device__ __forceinline__ void multiply_add(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
};

template <>
struct MatrixUnits<__half> {
  using Element = __half;
  static constexpr bool kBfloat16 = false;

  static __device__ __forceinline__ uint32_t add(uint32_t x, uint32_t y) {
    uint32_t sum;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(sum) : "r"(x), "r"(y));
    return sum;
  }

  static __device__ __forceinline__ void multiply_add(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
};

// Rows are of type T, scales and bias of type S.
template <class T, class S>
struct RowTiles {
  const Int8Layer& layer;
  const LayerRows& rows;
  Stream stream;

  template <int kUnits>
  void launch() const {
    constexpr int64_t kRows = kUnits * kRowsOfUnit;
    const int64_t tiles = (layer.outputs + kOutputsOfTile - 1) / kOutputsOfTile * ((rows.rows + kRows - 1) / kRows);
    checked_launch("weight_only_int8_linear", [&] {
      multiply_row_tiles_kernel<MatrixUnits<T>, S, kUnits>
          <<<static_cast<unsigned int>(tiles), kThreadsOfTile, 0, stream>>>(layer, static_cast<const T*>(rows.x),
                                                                            rows.rows, static_cast<T*>(rows.y));
    });
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

void launch_multiply_row_tiles(const Int8Layer& layer, const LayerRows& rows, Stream stream) {
  if (!suits_matrix_units(layer, rows)) throw std::invalid_argument("rows do not suit the matrix units");
  if (rows.rows == 0 || layer.outputs == 0) return;
  visit_layer_types(layer, rows, [&](auto of_rows, auto of_scales) {
    using T = CudaFloat<decltype(of_rows)>;
    using S = CudaFloat<decltype(of_scales)>;
    if constexpr (!std::is_same_v<T, float>) RowTiles<T, S>{layer, rows, stream}.launch_fitting();
  });
}

}  // namespace narrowcast::cuda
