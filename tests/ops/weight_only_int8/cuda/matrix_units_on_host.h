// The matrix units of ops/cuda/weight_only_int8/row_tiles.cu on the CPU, with the same layout.
#pragma once

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <array>
#include <cstdint>
#include <type_traits>

#include "tests/support/cuda_on_host/cuda_on_host.h"

namespace narrowcast::cuda_on_host {

// T: c10::BFloat16 or c10::Half.
template <class T>
struct MatrixUnitsOnHost {
  using Element = T;
  static constexpr bool kBfloat16 = std::is_same_v<T, c10::BFloat16>;

  static float half_of(uint64_t word, int64_t upper) {
    return static_cast<float>(T(static_cast<uint16_t>(word >> (16 * upper)), T::from_bits()));
  }

  static uint32_t add(uint32_t x, uint32_t y) {
    const T lower(half_of(x, 0) + half_of(y, 0));
    const T upper(half_of(x, 1) + half_of(y, 1));
    return uint32_t{upper.x} << 16 | lower.x;
  }

  static void multiply_add(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    constexpr unsigned kAll = ~0U;
    std::array<LaneValues, 4> of_a;
    std::array<LaneValues, 2> of_b;
    for (size_t i = 0; i < 4; ++i) of_a[i] = exchange("mma", kAll, a[i]);
    for (size_t i = 0; i < 2; ++i) of_b[i] = exchange("mma", kAll, b[i]);
    for (int64_t i = 0; i < 4; ++i) {
      const int64_t row = lane() / 4 + 8 * (i / 2);
      const int64_t column = lane() % 4 * 2 + i % 2;
      for (int64_t k = 0; k < 16; ++k) {
        const auto lane_of_k = static_cast<size_t>(k % 8 / 2);
        const uint64_t in_a =
            of_a[static_cast<size_t>(row / 8 + 2 * (k / 8))][static_cast<size_t>(row % 8 * 4) + lane_of_k];
        const uint64_t in_b = of_b[static_cast<size_t>(k / 8)][static_cast<size_t>(column * 4) + lane_of_k];
        c[i] += half_of(in_a, k % 2) * half_of(in_b, k % 2);
      }
    }
  }
};

}  // namespace narrowcast::cuda_on_host
