// What becomes of gradients between their averaging and the optimizer: whether a step can be taken with them, how long
// they are as one vector, and how they are made shorter.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace narrowcast {

// Those of `parameters` that have one.
std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& parameters);

// Whether every element of every gradient is finite. Depends on the bits alone, not on the number of threads: ranks
// with equal gradients find the same. Two reductions for each parameter; a GPU is waited for.
bool gradients_are_finite(const std::vector<at::Tensor>& parameters);

// The 2-norm of all gradients as one vector: a float64 scalar on their device, 0 where there are none. Nothing is
// waited for, and on a GPU a few kernels do it for all of one dtype. The squares are summed in float64, in which those
// of float32 and narrower types cannot overflow.
at::Tensor gradient_norm(const std::vector<at::Tensor>& parameters);

// The same as gradients_are_finite for who knows gradient_norm: a norm that is finite says so of all elements. Only if
// it is not are the elements looked at, since squares of float64 gradients can overflow.
bool are_finite_by_norm(double norm, const std::vector<at::Tensor>& parameters);

// Scales the gradients, whose norm is `norm`, so that it is at most `max_norm` (> 0), as LibTorch's clip_grad_norm_
// does. Where they are short enough nothing is done.
void clip_gradients(const std::vector<at::Tensor>& parameters, double norm, double max_norm);

// LibTorch's clip_grad_norm_: both in one, with sums in the gradients' own type. Returns the norm they had. Called
// after the gradients are averaged, so every rank finds the same norm.
double clip_gradient_norm(const std::vector<at::Tensor>& parameters, double max_norm);

}  // namespace narrowcast
