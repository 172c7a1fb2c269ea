// How far quantized_allreduce and its short names may be from the mean.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "hooks/wire_options.h"
#include "ops/codec/wire/format.h"

namespace narrowcast::verification {

// This rank's term of the bound, as error_bound's, for sending `values`, the bucket in float64, in `format`.
//
// One hop. A number x of a block with the largest magnitude m decodes to within
//   e(x, m) = r |x| + t s + 2^-22 |x| + g 2^-100,  s = (1 + 2^-7) m / g
// of itself, where g is the greatest code, and r |x| or t s what rounding to a code costs: t = 1/2 for integers, and
// for floating-point codes r their unit roundoff and t half their least step. Random rounding costs twice that. 2^-22
// covers the product with the scale's inverse, 2^-100 scales that count as zero. In one shot the mean is thus within
// the sum over ranks of e / W.
//
// Second hop. The mean's blocks are encoded again. Mean and largest magnitude are at most the mean over ranks of
// |x| + e and of m + e(m, m), and e is linear: e(|x| + e, m + e(m, m)) / W is this rank's term.
//
// Error feedback adds to a gradient what the step before left out, which is at most the same once more; the sum's own
// rounding then grows in proportion: 9/4 covers both for two passes.
at::Tensor wire_error(WireFormat format, const hooks::WireOptions& options, const at::Tensor& values,
                      int64_t world_size);

}  // namespace narrowcast::verification
