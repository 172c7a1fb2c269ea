// Operations on averaged gradients before the optimizer's step: finiteness, norm and clipping.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace narrowcast {

// The gradients of the `parameters` that have one.
std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& parameters);

// Whether every element of every gradient is finite. The result depends only on the bits, not on the number of threads:
// ranks with equal gradients get the same result. Costs one or two reductions per parameter, and a wait for the GPU.
bool gradients_are_finite(const std::vector<at::Tensor>& parameters);

// The 2-norm of all gradients as one vector: a float64 scalar on their device, 0 without gradients. It does not wait
// for a GPU, where a few kernels compute it for all gradients of one dtype. Squares are summed in float64, where
// squares of float32 and narrower types cannot overflow.
//
// For float32 on the CPU the bits depend neither on the number of threads nor on how elements are divided into
// gradients, and the error is bounded (ops/cpu/optimizer/gradient_norm.h). The norm is Inf or NaN if an element is.
at::Tensor gradient_norm(const std::vector<at::Tensor>& parameters);

// gradients_are_finite, given gradient_norm: if the norm is finite, so are all elements. If it is not, the elements are
// checked, since squares of float64 gradients can overflow.
bool are_finite_by_norm(double norm, const std::vector<at::Tensor>& parameters);

// The factor for gradients of norm `norm` so that their norm is at most `max_norm` (> 0), as in LibTorch's
// clip_grad_norm_: max_norm / (norm + 1e-6), but at most 1. NaN if the norm is NaN.
double clip_factor(double norm, double max_norm);

// Multiplies the gradients, whose norm is `norm`, by clip_factor. Does nothing if that is 1.
void clip_gradients(const std::vector<at::Tensor>& parameters, double norm, double max_norm);

// gradient_norm and clip_gradients. Returns the norm before clipping. Call it after the gradients are averaged, so that
// every rank gets the same norm.
double clip_gradient_norm(const std::vector<at::Tensor>& parameters, double max_norm);

}  // namespace narrowcast
