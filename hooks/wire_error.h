// How far quantized_allreduce and its short names may be from the mean.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include <narrowcast/wire_options.h>

namespace narrowcast::hooks {

// What rounding to the nearest costs an element: relative to it, in steps of its block's scale, or absolute.
struct FormatError {
  int64_t block = 1;
  double greatest = 1;  // of the codes
  double relative = 0;
  double steps = 0;
  double absolute = 0;
};

// As the format's type says (ops/codec/wire_format.h). std::invalid_argument for a number that is no WireFormat.
FormatError format_error(WireFormat format);

// What one rank's array can lose on its way, per element, float64.
struct HopErrors {
  at::Tensor first;   // of the array itself
  at::Tensor second;  // its share of W times what is lost of the mean; 0 in one shot
};

// For sending an array whose elements have at most these `magnitudes`, float64 [numel], in `format`.
//
// One hop. A number x of a block with the largest magnitude m decodes to within
//   e(x, m) = r |x| + t s + 2^-22 |x| + g 2^-100,  s = (1 + 2^-7) m / g
// of itself, where g is the greatest code, and r |x| or t s what rounding to a code costs: t = 1/2 for integers, and
// for floating-point codes r their unit roundoff and t half their least step. Random rounding costs twice that, a whole
// step. 2^-22 covers the product with the scale's inverse and the sum with a residual, 2^-100 scales that count as
// zero. In one shot the mean is thus within the sum over ranks of e / W.
//
// Second hop. The mean's blocks are encoded again. Mean and largest magnitude are at most the mean over ranks of
// |x| + e and of m + e(m, m), and e is linear: e(|x| + e, m + e(m, m)) / W is this rank's term.
HopErrors wire_error(WireFormat format, const WireOptions& options, const at::Tensor& magnitudes, int64_t world_size);

}  // namespace narrowcast::hooks
