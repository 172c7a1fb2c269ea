// How far a hook's mean gradient may be from the mean without a hook, derived
// from the gradients themselves. docs/hooks.md states the formulas.
//
// With g_r the gradient of rank r, W ranks and u = 2^-24, the unit roundoff of
// float32, both means are sums of W terms of size |g_r| / W in some order, so
// each is within about W u sum_r |g_r| / W of the exact one. A hook that narrows
// the gradients adds its format's own error. Every bound is a sum over ranks, so
// each rank computes its term and the terms are all-reduced.
//
// With error feedback the hook sends g_r and the residual of the step before, and
// keeps what the receivers then lack. Added up over steps, its means are off by the
// last residuals alone: so the bound is one on the sums over all steps so far.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

#include <narrowcast/hook_options.h>
#include "ops/comm/node/node_layout.h"

namespace narrowcast::hooks {

// The sum over ranks of a tensor that all of them give, in a new one: a collective. Empty where all ranks are taken to
// give what this one does.
using SumOverRanks = std::function<at::Tensor(const at::Tensor& term)>;

// A bucket as this rank gave it to the hook, 1-D. The other tensors have its shape, or are undefined.
struct SentBucket {
  at::Tensor gradients;
  at::Tensor exempt = {};    // bool: travels as float32; nowhere if undefined
  at::Tensor residual = {};  // float64: an upper bound on the residual that is added; 0 if undefined
  SumOverRanks sum_over_ranks = {};
};

// This rank's terms of the bound, per element: float64 in the shape of the bucket.
struct ErrorTerms {
  at::Tensor float32;     // the roundings of float32 arithmetic; with error feedback they add up over steps
  at::Tensor first_hop;   // what the other ranks lack of this one's gradients, over W
  at::Tensor second_hop;  // its share of what all lack of the mean, where that is narrowed again

  at::Tensor sum() const;
};

// The terms of a mean in float32.
ErrorTerms float32_terms(const SentBucket& bucket, int64_t world_size);

// The terms of a mean in `format`, one without blocks, in which the gradients are divided and added up too.
ErrorTerms cast_terms(const SentBucket& bucket, int64_t world_size, WireFormat format);

// The terms of affine 8-bit codes with one scale per `row_size` >= 1 elements, averaged in float32.
ErrorTerms affine_terms(const SentBucket& bucket, int64_t world_size, int64_t row_size);

// A wire format, and options whose own format does not count.
struct SentFormat {
  WireFormat format = WireFormat::kFp32;
  WireOptions options = {};
};

// The terms of an exchange over the ranks of `layout`. In two levels a node sends N / W times the sum of its ranks'
// numbers, N nodes of W ranks: e below is linear, so that what is lost of the mean over nodes is at most the sum over
// ranks of what each would lose of its own numbers, over W, as in one level.
ErrorTerms wire_terms(const SentBucket& bucket, const node::NodeLayout& layout, const SentFormat& sent_format);

// What rounding to the nearest costs an element: relative to it, in steps of its block's scale, or absolute.
struct FormatError {
  int64_t block = 1;
  double greatest = 1;  // of the codes
  double relative = 0;
  double steps = 0;
  double absolute = 0;
};

// As the format's type says (ops/codec/wire_format.h), of one whose blocks have scales or that has no blocks.
// std::invalid_argument for another number.
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
//
// Variable formats. e(x) = t s + 2^-21 |x|, as inverses of steps may be subnormal, where s is the step that the
// encoder finds for a message whose blocks reach to these magnitudes on both sides of 0: no less than that of one whose
// numbers they are or bound, as numbers that reach farther on either side need no smaller step. No block's own step is
// above it, and blocks of zeros are below half of it. It is no linear function of the magnitudes, so all ranks find
// that of the mean, at most the mean over ranks of |x| + e, together, by `sum_over_ranks`. So they do for what a node
// sends, at most N / W times the sum of all ranks' magnitudes.
//
// Each segment of the layout, in the order in which the array travels (collectives::ElementOrder), goes its own route
// between nodes; with one node nothing is lost. Where the route depends on a link that the options do not give, two
// hops; in a variable format, the greater of one route's messages and the other's.
HopErrors wire_error(const SentFormat& sent_format, const at::Tensor& magnitudes, const node::NodeLayout& layout,
                     const SumOverRanks& sum_over_ranks = {});

}  // namespace narrowcast::hooks
