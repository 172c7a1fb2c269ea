// Quantisation is constant between its steps, so it has no useful gradient.
// Without a kernel here autograd would treat the outputs as constants and give
// silently wrong gradients; with PyTorch's fallback the forward pass works and
// backward through an output throws, naming the operator.
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

namespace narrowcast {

TORCH_LIBRARY_IMPL(narrowcast, Autograd, m) {
  for (const char* name : {"choose_qparams_per_tensor", "choose_qparams_per_channel", "quantize_per_tensor",
                           "quantize_per_channel", "dequantize_per_tensor", "dequantize_per_channel"}) {
    m.impl(name, torch::autograd::autogradNotImplementedFallback());
  }
}

}  // namespace narrowcast
