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

#include <narrowcast/wire_options.h>

namespace narrowcast::hooks {

// A bucket as this rank gave it to the hook, 1-D. The other tensors have its shape, or are undefined.
struct SentBucket {
  at::Tensor gradients;
  at::Tensor exempt = {};    // bool: travels as float32; nowhere if undefined
  at::Tensor residual = {};  // float64: an upper bound on the residual that is added; 0 if undefined
};

// This rank's terms of the bound, per element: float64 in the shape of the bucket.
struct ErrorTerms {
  at::Tensor float32;     // the roundings of float32 arithmetic; with error feedback they add up over steps
  at::Tensor first_hop;   // what the other ranks lack of this one's gradients, over W
  at::Tensor second_hop;  // its share of what all lack of the mean, where that is narrowed again

  at::Tensor sum() const;
};

// Of a mean in float32.
ErrorTerms float32_terms(const SentBucket& bucket, int64_t world_size);

// Of a mean in `format`, one without blocks, in which the gradients are divided and added up too.
ErrorTerms cast_terms(const SentBucket& bucket, int64_t world_size, WireFormat format);

// Of affine 8-bit codes with one scale per `row_size` >= 1 elements, averaged in float32.
ErrorTerms affine_terms(const SentBucket& bucket, int64_t world_size, int64_t row_size);

// Of `format` with `options`, whose own format does not count.
ErrorTerms wire_terms(const SentBucket& bucket, int64_t world_size, WireFormat format, const WireOptions& options);

}  // namespace narrowcast::hooks
