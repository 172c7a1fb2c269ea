// What arrives is rounded, and a sum over other ranks: there is no derivative, and backward says so.
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include "ops/autograd/write_without_derivative.h"

namespace narrowcast {

TORCH_LIBRARY_IMPL(narrowcast, Autograd, m) {
  m.impl("quantized_all_reduce_", autograd::write_without_derivative_fallback());
  m.impl("quantized_all_reduce", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace narrowcast
