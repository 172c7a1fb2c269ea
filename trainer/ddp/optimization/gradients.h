// Operations on averaged gradients before the optimizer's step: finiteness, norm and clipping.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace narrowcast {

// The gradients of the `parameters` that have one.
std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& parameters);

// Whether every element of every gradient is finite. The result depends only on the bits, not on the number of threads:
// ranks with equal gradients get the same result. Costs two reductions per parameter and a wait for the GPU.
bool gradients_are_finite(const std::vector<at::Tensor>& parameters);

// The 2-norm of all gradients as one vector: a float64 scalar on their device, 0 without gradients. It does not wait
// for a GPU, where a few kernels compute it for all gradients of one dtype. Squares are summed in float64, where
// squares of float32 and narrower types cannot overflow.
at::Tensor gradient_norm(const std::vector<at::Tensor>& parameters);

// gradients_are_finite, given gradient_norm: if the norm is finite, so are all elements. If it is not, the elements are
// checked, since squares of float64 gradients can overflow.
bool are_finite_by_norm(double norm, const std::vector<at::Tensor>& parameters);

// Scales the gradients, whose norm is `norm`, to a norm of at most `max_norm` (> 0), as LibTorch's clip_grad_norm_
// does. Does nothing if the norm is small enough.
void clip_gradients(const std::vector<at::Tensor>& parameters, double norm, double max_norm);

// LibTorch's clip_grad_norm_: norm and clipping in one, with sums in the gradients' dtype. Returns the norm before
// clipping. Call it after the gradients are averaged, so that every rank gets the same norm.
double clip_gradient_norm(const std::vector<at::Tensor>& parameters, double max_norm);

}  // namespace narrowcast
