// Kernels of weight_only_int8_linear on processors with VNNI
// (sums of four products of bytes in one instruction).
//
// Each row x is written in fixed point, x[k] = unit * v[k], where the unit is a
// power of two so small that the row's largest v nearly fills its digits:
//
//   v = d0 * 256^(planes-1) + ... + d(planes-1),  every digit in -128..127
//
// A plane of digits times the codes is a matrix product of bytes with sums in
// int32, which are exact, and so is their combination in double. What is lost
// is the rounding of x[k] to a whole number of units: at most half a unit, less
// than max|x| / 8355711 with three planes and max|x| / 32639 with two. Because
// sums are exact, a row's result depends on no thread, block or other row.
//
// VNNI multiplies unsigned by signed bytes: codes go in with 128 added, and 128
// times the sum of the digits, the correction, comes off the result.
//
// Digit rows (row 0's planes, then row 1's, ...) lie in panels of
// kPanelDigitRows, the last with what remains; in a panel, 64 digits of its
// first digit row, 64 of the next, ..., then the next 64 of the first.
#pragma once

#include <c10/util/BFloat16.h>

#include <cstdint>

#include "ops/cpu/weight_only_int8/int8_layer.h"

namespace narrowcast::cpu {

inline constexpr int64_t kPanelDigitRows = 6;       // a multiple of 2 and of 3, so no row is in two panels
inline constexpr int64_t kDigitStep = 64;           // inputs are padded with zeros to a multiple of it
inline constexpr int64_t kMostDigitInputs = 65536;  // up to here sums of 255 * 128 fit int32
inline constexpr int64_t kBlockOutputs = 32;        // outputs are computed in blocks of so many

// Rows as digits. The arrays are aligned to 64 bytes.
struct DigitRows {
  int64_t rows;
  int64_t planes;        // 2 or 3
  int64_t padded;        // inputs, with the padding
  int8_t* digits;        // [rows * planes * padded], in panels
  double* units;         // [rows]
  int32_t* corrections;  // [rows * planes]
};

// For rows of float or c10::BFloat16.
template <class T>
struct DigitKernels {
  // The planes that do justice to x[0..n): half a unit is then below 2^-16 of the mean magnitude (2^-8 in bfloat16).
  //   2  bfloat16 whose largest magnitude is at most 64 times the mean
  //   3  float32 likewise; bfloat16 up to 16384 times the mean
  //   0  other rows, and those with a value that is not finite or a largest one beyond 2^+-100; they go another way
  int64_t (*planes_for)(const T* x, int64_t n);

  // Writes x[0..n), which out.planes suit, as row `row`.
  void (*split)(const T* x, int64_t n, int64_t row, const DigitRows& out);

  // The outputs of the given blocks (block b is outputs [32 b, 32 b + 32), the last one shorter where they end);
  // row r of x goes to y[r].
  void (*multiply)(const DigitRows& x, const Int8Layer& layer, Range blocks, T* const* y);
};

// Null where the processor, or the instruction set that Highway chose, has no VNNI.
template <class T>
const DigitKernels<T>* digit_kernels() = delete;
template <>
const DigitKernels<float>* digit_kernels();
template <>
const DigitKernels<c10::BFloat16>* digit_kernels();

}  // namespace narrowcast::cpu
