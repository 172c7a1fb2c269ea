// A linear layer of int8 codes on the matrix units, for rows that are too many to sum one by one and too few for
// widening all codes. A block multiplies a tile of rows by 32 outputs. Each of its warps takes every eighth step of 64
// inputs; the warps' sums are added in shared memory.
//
// Let g = lane / 4 and p = lane % 4. A lane holds 16 of a step's inputs, from 16p on. It holds them for outputs g, g +
// 8, g + 16 and g + 24, and for one row in eight, number g. One instruction takes four inputs of each lane, as inputs
// 2p, 2p + 1, 2p + 8 and 2p + 9 of 16. They really are other inputs, but the same ones for outputs and rows, and the
// order of a sum's terms is free. So codes and rows are loaded in wide loads, and no lane needs another lane's data.
//
// Units are the matrix units; row_tiles.cu has the GPU's. A test on the host first includes
// tests/support/cuda_on_host/cuda_on_host.h.
#pragma once

#include <cstdint>

#include "ops/cuda/launch/vectors.h"
#include "ops/cuda/weight_only_int8/linear.h"

namespace narrowcast::cuda {

inline constexpr int kOutputsOfTile = 32;
inline constexpr int kWarpsOfTile = 8;
inline constexpr int kThreadsOfTile = kWarpsOfTile * 32;

// The unit of a lane's loads: 16 codes, or eight numbers of a row.
using Words = Pack<uint32_t, 4>;
inline constexpr int kInputsOfLane = 16;
inline constexpr int kInputsOfStep = 4 * kInputsOfLane;

// Rows that one instruction multiplies.
inline constexpr int kRowsOfUnit = 8;

// Converts codes 2 * pair and 2 * pair + 1 of a word, exactly.
template <class Units>
__device__ __forceinline__ uint32_t widen_pair(uint32_t codes, int pair) {
  const uint32_t selector =
      pair == 0 ? 0x4140U : 0x4342U;  // A code, a byte of the other word, and the same for the next code.
  if constexpr (Units::kBfloat16) {
    // The lower seven bits become the mantissa of 128, so they count 128 more; -128 is added, or -256 if the sign bit
    // is set.
    const uint32_t spread = byte_permute(codes, 0, selector);
    return Units::add((spread & 0x007F007FU) | 0x43004300U, (spread & 0x00800080U) | 0xC300C300U);
  } else {
    // Code + 128 becomes the lower bits of 1024; then -1152 is added.
    return Units::add(byte_permute(codes ^ 0x80808080U, 0x64646464U, selector), 0xE480E480U);
  }
}

// A lane's part of a step.
template <int kUnits>
struct Step {
  Words codes[kOutputsOfTile / 8] = {};
  Words rows[kUnits][2] = {};

  // Word `i` of a row's eight words.
  __device__ __forceinline__ uint32_t row_word(int unit, int i) const { return rows[unit][i / 4].values[i % 4]; }
};

// Pointers for a lane's loads; after the last output or row they repeat it.
template <class Units, int kUnits>
struct TileSource {
  const int8_t* codes[kOutputsOfTile / 8];
  const typename Units::Element* rows[kUnits];
  int64_t inputs;

  __device__ TileSource(const Int8Layer& layer, const typename Units::Element* x, int64_t row_count,
                        int64_t first_output, int64_t first_row)
      : inputs(layer.inputs) {
    NARROWCAST_UNROLL
    for (int i = 0; i < kOutputsOfTile / 8; ++i) {
      const int64_t output = first_output + 8 * i;
      codes[i] = layer.codes + (output < layer.outputs ? output : layer.outputs - 1) * inputs;
    }
    NARROWCAST_UNROLL
    for (int unit = 0; unit < kUnits; ++unit) {
      const int64_t row = first_row + kRowsOfUnit * unit;
      rows[unit] = x + (row < row_count ? row : row_count - 1) * inputs;
    }
  }

  // Loads the step from input `first` on; zeros after the last input.
  __device__ __forceinline__ Step<kUnits> load(int64_t first) const {
    Step<kUnits> step;
    if (first >= inputs) return step;
    NARROWCAST_UNROLL
    for (int i = 0; i < kOutputsOfTile / 8; ++i) step.codes[i] = load_vector<Words>(codes[i] + first);
    NARROWCAST_UNROLL
    for (int unit = 0; unit < kUnits; ++unit) {
      step.rows[unit][0] = load_vector<Words>(rows[unit] + first);
      step.rows[unit][1] = load_vector<Words>(rows[unit] + first + kInputsOfLane / 2);
    }
    return step;
  }
};

// A lane's sums, for outputs g and g + 8 of each half of the tile, and rows 2p and 2p + 1 of each unit.
template <class Units, int kUnits>
struct TileSums {
  float of[kOutputsOfTile / 16][kUnits][4] = {};

  __device__ __forceinline__ void add(const Step<kUnits>& step) {
    NARROWCAST_UNROLL
    for (int word = 0; word < 4; ++word) {
      NARROWCAST_UNROLL
      for (int half = 0; half < kOutputsOfTile / 16; ++half) {
        const uint32_t low = step.codes[2 * half].values[word];
        const uint32_t high = step.codes[2 * half + 1].values[word];
        const uint32_t a[4] = {widen_pair<Units>(low, 0), widen_pair<Units>(high, 0), widen_pair<Units>(low, 1),
                               widen_pair<Units>(high, 1)};
        NARROWCAST_UNROLL
        for (int unit = 0; unit < kUnits; ++unit) {
          const uint32_t b[2] = {step.row_word(unit, 2 * word), step.row_word(unit, 2 * word + 1)};
          Units::multiply_add(of[half][unit], a, b);
        }
      }
    }
  }
};

// All warps' sums. With this pitch, the lanes of a warp write to different banks.
template <int kUnits>
struct SharedSums {
  static constexpr int kPitch = kOutputsOfTile + 4;
  float of[kWarpsOfTile][kRowsOfUnit * kUnits][kPitch];

  template <class Units>
  __device__ __forceinline__ void put(int warp, int lane, const TileSums<Units, kUnits>& sums) {
    NARROWCAST_UNROLL
    for (int half = 0; half < kOutputsOfTile / 16; ++half) {
      NARROWCAST_UNROLL
      for (int unit = 0; unit < kUnits; ++unit) {
        NARROWCAST_UNROLL
        for (int i = 0; i < 4; ++i) {
          const int row = kRowsOfUnit * unit + 2 * (lane % 4) + i % 2;
          of[warp][row][16 * half + lane / 4 + 8 * (i / 2)] = sums.of[half][unit][i];
        }
      }
    }
  }

  __device__ __forceinline__ float sum(int row, int output) const {
    float sum = 0;
    NARROWCAST_UNROLL
    for (int warp = 0; warp < kWarpsOfTile; ++warp) sum += of[warp][row][output];
    return sum;
  }
};

// y of kUnits * kRowsOfUnit rows and kOutputsOfTile outputs per block of kThreadsOfTile threads. Tiles of the same
// outputs are consecutive. Codes and x begin at multiples of 16 bytes, and the number of inputs is a multiple of
// kInputsOfLane.
template <class Units, class S, int kUnits>
__global__ void __launch_bounds__(kThreadsOfTile)
    multiply_row_tiles_kernel(Int8Layer layer, const typename Units::Element* x, int64_t rows,
                              typename Units::Element* y) {
  __shared__ SharedSums<kUnits> shared;
  constexpr int kRows = kUnits * kRowsOfUnit;
  const int64_t tiles_of_rows = (rows + kRows - 1) / kRows;
  const int64_t first_output = blockIdx.x / tiles_of_rows * kOutputsOfTile;
  const int64_t first_row = blockIdx.x % tiles_of_rows * kRows;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = thread / 32;

  // Loaded before it is needed, since that takes as long as loading codes.
  const int64_t own_output = first_output + thread % kOutputsOfTile;
  const OutputScales<S> scales{static_cast<const S*>(layer.scales), static_cast<const S*>(layer.bias)};
  const OutputScale scale = scales.at(own_output < layer.outputs ? own_output : layer.outputs - 1);

  const TileSource<Units, kUnits> source(layer, x, rows, first_output + lane / 4, first_row + lane / 4);
  const int64_t of_lane = (lane % 4) * kInputsOfLane;
  TileSums<Units, kUnits> sums;
  int64_t first = int64_t{warp} * kInputsOfStep;
  Step<kUnits> next = source.load(first + of_lane);
  while (first < layer.inputs) {  // The same for all lanes of the warp.
    const Step<kUnits> step = next;
    first += kWarpsOfTile * kInputsOfStep;
    next = source.load(first + of_lane);
    sums.add(step);
  }

  shared.put(warp, lane, sums);
  __syncthreads();
  if (own_output >= layer.outputs) return;
  for (int row = thread / kOutputsOfTile; row < kRows && first_row + row < rows; row += kWarpsOfTile) {
    const float sum = shared.sum(row, thread % kOutputsOfTile);
    y[(first_row + row) * layer.outputs + own_output] = static_cast<typename Units::Element>(scale.apply(sum));
  }
}

}  // namespace narrowcast::cuda
