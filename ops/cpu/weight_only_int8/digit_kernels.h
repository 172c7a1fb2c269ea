// Kernels of weight_only_int8_linear for processors with VNNI, an instruction for sums of four products of bytes. Each
// runs on the calling thread. Pointers need no alignment unless stated otherwise.
//
// Each row x is written in fixed point, x[k] = unit * v[k]. The unit is a power of two, so small that the row's largest
// v nearly fills its digits:
//
//   v = d0 * 256^(planes-1) + ... + d(planes-1),  every digit in -128..127
//
// A plane of digits times the codes is a matrix product of bytes with sums in int32. These sums are exact, and so is
// their combination in double. The only error is the rounding of x[k] to a whole number of units: at most half a unit,
// which is less than max|x| / 8355711 with three planes and max|x| / 32639 with two. Because sums are exact, a row's
// result does not depend on threads, blocks or other rows.
//
// VNNI multiplies unsigned by signed bytes. So 128 is added to the codes, and the correction, 128 times the sum of the
// digits, is subtracted from the result.
//
// Digit rows (row 0's planes, then row 1's, ...) are stored in panels of kPanelDigitRows; the last panel has the
// remaining rows. A panel contains 64 digits of its first digit row, 64 of the next, and so on, then the next 64 of the
// first.
#pragma once

#include <c10/util/BFloat16.h>

#include <cstdint>

#include "ops/cpu/weight_only_int8/int8_layer.h"

namespace narrowcast::cpu {

inline constexpr int64_t kPanelDigitRows = 6;       // a multiple of 2 and of 3, so that no row is in two panels
inline constexpr int64_t kDigitStep = 64;           // inputs are padded with zeros to a multiple of it
inline constexpr int64_t kMostDigitInputs = 65536;  // up to this number, sums of 255 * 128 fit int32
inline constexpr int64_t kBlockOutputs = 32;        // outputs in a block

// Rows as digits. The arrays are aligned to 64 bytes.
struct DigitRows {
  int64_t rows;
  int64_t planes;        // 2 or 3
  int64_t padded;        // inputs, with the padding
  int8_t* digits;        // [rows * planes * padded], in panels
  double* units;         // [rows]
  int32_t* corrections;  // [rows * planes]
};

// Kernels for rows of float or c10::BFloat16.
template <class T>
struct DigitKernels {
  // The number of planes that x[0..n) needs for half a unit to be below 2^-16 of the mean magnitude (2^-8 in bfloat16).
  //   2  bfloat16, if the largest magnitude is at most 64 times the mean
  //   3  float32, if the largest magnitude is at most 64 times the mean; bfloat16, up to 16384 times
  //   0  other rows, and rows with a value that is not finite or a largest magnitude beyond 2^+-100: use another kernel
  int64_t (*planes_for)(const T* x, int64_t n);

  // Writes x[0..n) as row `row`; out.planes is a suitable number of planes.
  void (*split)(const T* x, int64_t n, int64_t row, const DigitRows& out);

  // Computes the outputs of the given blocks, with row r of x written to y[r]. Block b is outputs [32 b, 32 b + 32);
  // the last block may be shorter.
  void (*multiply)(const DigitRows& x, const Int8Layer& layer, Range blocks, T* const* y);
};

// Null if the processor, or the instruction set that Highway has chosen, has no VNNI.
template <class T>
const DigitKernels<T>* digit_kernels() = delete;
template <>
const DigitKernels<float>* digit_kernels();
template <>
const DigitKernels<c10::BFloat16>* digit_kernels();

}  // namespace narrowcast::cpu
