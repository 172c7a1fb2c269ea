// Quantisation is constant between its steps, so it has no useful gradient:
// with PyTorch's fallback the forward pass works and backward through an output
// throws, naming the operator.
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

namespace narrowcast {

TORCH_LIBRARY_IMPL(narrowcast, Autograd, m) {
  m.impl("dynamically_quantize_per_channel", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace narrowcast
