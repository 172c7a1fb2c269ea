// Bounds on the difference between a hook's mean gradient and the mean without a hook, derived from the gradients.
// docs/reference/hooks.md states the formulas.
//
// g_r is the gradient of rank r, W the number of ranks, and u = 2^-24 the unit roundoff of float32. Both means are sums
// of W terms of size |g_r| / W in some order, so each is within about W u sum_r |g_r| / W of the exact mean. A hook
// that narrows the gradients adds its format's error. Every bound is a sum over ranks: each rank computes its term, and
// the terms are all-reduced.
//
// With error feedback the hook sends g_r plus the residual of the step before, and keeps the new rounding error. Summed
// over steps, its means are off only by the last residuals, so the bound is on the sums over all steps so far.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

#include <narrowcast/hook_options.h>
#include "ops/comm/node/node_layout.h"

namespace narrowcast::hooks {

// Returns the sum over ranks of a tensor that every rank passes, in a new tensor: a collective. If empty, all ranks are
// assumed to pass the same tensor.
using SumOverRanks = std::function<at::Tensor(const at::Tensor& term)>;

// A bucket as this rank passed it to the hook, 1-D. The other tensors have its shape, or are undefined.
struct SentBucket {
  at::Tensor gradients;
  at::Tensor exempt = {};    // bool: sent as float32; undefined: no element
  at::Tensor residual = {};  // float64: upper bound of the added residual; undefined: 0
  SumOverRanks sum_over_ranks = {};
};

// This rank's terms of the bound, per element: float64 in the shape of the bucket.
struct ErrorTerms {
  at::Tensor float32;     // float32 rounding; with error feedback this adds up over steps
  at::Tensor first_hop;   // error of this rank's gradients as other ranks receive them, / W
  at::Tensor second_hop;  // this rank's share of the error of the mean, if it is encoded again

  at::Tensor sum() const;
};

// The terms of a mean in float32.
ErrorTerms float32_terms(const SentBucket& bucket, int64_t world_size);

// The terms of a mean in `format`, which has no blocks; gradients are also divided and added in it.
ErrorTerms cast_terms(const SentBucket& bucket, int64_t world_size, WireFormat format);

// The terms of affine 8-bit codes with one scale per `row_size` >= 1 elements, averaged in float32.
ErrorTerms affine_terms(const SentBucket& bucket, int64_t world_size, int64_t row_size);

// A wire format, and options; the format in the options is not read.
struct SentFormat {
  WireFormat format = WireFormat::kFp32;
  WireOptions options = {};
};

// The terms of an all-reduce over the ranks of `layout`. In two levels, with N nodes and W ranks, a node sends N / W
// times the sum of its ranks' numbers. e below is linear. So the error of the mean over nodes is at most the sum over
// ranks of the error of each rank's own numbers, over W, as in one level.
ErrorTerms wire_terms(const SentBucket& bucket, const node::NodeLayout& layout, const SentFormat& sent_format);

// The largest error of rounding an element to nearest: the sum of a relative, a scaled and an absolute part.
struct FormatError {
  int64_t block = 1;
  double greatest = 1;  // greatest code
  double relative = 0;
  double steps = 0;
  double absolute = 0;
};

// The error according to the format's type (ops/codec/wire_format.h), for formats that are not variable.
// std::invalid_argument for an invalid value.
FormatError format_error(WireFormat format);

// The largest error of one rank's array in each hop, per element, float64.
struct HopErrors {
  at::Tensor first;   // of the array itself
  at::Tensor second;  // this rank's share of W times the error of the mean; 0 in one shot
};

// The errors of an array that is sent in `format`; its elements have at most these `magnitudes`, float64 [numel].
//
// One hop. A number x of a block with the largest magnitude m decodes to within
//   e(x, m) = r |x| + t s + 2^-22 |x| + g 2^-100,  s = (1 + 2^-7) m / g
// of itself, where g is the greatest code. r |x| or t s is the error of rounding to a code. For integers t = 1/2; for
// floating-point codes r is their unit roundoff and t half their least step. Stochastic rounding doubles this error.
// 2^-22 covers the product with the scale's inverse and the sum with a residual; 2^-100 covers scales that are treated
// as zero. In one shot the mean is thus within the sum over ranks of e / W.
//
// In sparse formats most elements become 0. There g = t = 1 and r = 0: neither an element nor its level is above m, up
// to the rounding of the level to bfloat16.
//
// Second hop. The mean's blocks are encoded again. The mean is at most the mean over ranks of |x| + e, and its largest
// magnitude at most the mean of m + e(m, m). Because e is linear, this rank's term is e(|x| + e, m + e(m, m)) / W.
//
// Variable formats. e(x) = t s + 2^-21 |x|, because inverses of steps may be subnormal. s is the encoder's step for a
// message whose blocks reach these magnitudes on both sides of 0. Numbers that reach farther never need a smaller step,
// so s is at least the step of any message that the magnitudes bound. No block's own step is above s, and blocks that
// become zeros are below half of it. s is not linear in the magnitudes. So all ranks compute the step of the mean
// together, with `sum_over_ranks`; the mean is at most the mean over ranks of |x| + e. They do the same for a node's
// message, which is at most N / W times the sum of all ranks' magnitudes.
//
// Each segment of the layout has a separate route between nodes, in the order in which the array is sent
// (collectives::ElementOrder). With one node there is no error. If the route depends on a link that the options do not
// give, two hops are assumed; in a variable format, the larger error of either route's messages.
HopErrors wire_error(const SentFormat& sent_format, const at::Tensor& magnitudes, const node::NodeLayout& layout,
                     const SumOverRanks& sum_over_ranks = {});

}  // namespace narrowcast::hooks
