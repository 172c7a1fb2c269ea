// Gradients between their averaging and the optimizer: whether all are finite, their norm, and clipping.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace narrowcast {

// The gradients of the `parameters` that have one.
std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& parameters);

// Whether every element of every gradient is finite. Depends on the bits alone, not on the number of threads: ranks
// with equal gradients find the same. Two reductions for each parameter; a GPU is waited for.
bool gradients_are_finite(const std::vector<at::Tensor>& parameters);

// The 2-norm of all gradients as one vector: a float64 scalar on their device, 0 without gradients. It does not wait
// for a GPU, where a few kernels compute it for all gradients of one dtype. The squares are summed in float64, in which
// those of float32 and narrower types cannot overflow.
at::Tensor gradient_norm(const std::vector<at::Tensor>& parameters);

// gradients_are_finite, given gradient_norm: if the norm is finite, so are all elements. If it is not, the elements are
// checked, since squares of float64 gradients can overflow.
bool are_finite_by_norm(double norm, const std::vector<at::Tensor>& parameters);

// Scales the gradients, whose norm is `norm`, so that it is at most `max_norm` (> 0), as LibTorch's clip_grad_norm_
// does. Where they are short enough nothing is done.
void clip_gradients(const std::vector<at::Tensor>& parameters, double norm, double max_norm);

// LibTorch's clip_grad_norm_: both in one, with sums in the gradients' own type. Returns the norm they had. Called
// after the gradients are averaged, so every rank finds the same norm.
double clip_gradient_norm(const std::vector<at::Tensor>& parameters, double max_norm);

}  // namespace narrowcast
