// Rounding has no useful gradient; backward throws, see autograd/affine_uint8.cpp.
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

namespace narrowcast {

TORCH_LIBRARY_IMPL(narrowcast, Autograd, m) {
  for (const char* name : {"quantize_tensor", "quantize_tensor_list", "dequantize_tensor", "dequantize_tensor_list"}) {
    m.impl(name, torch::autograd::autogradNotImplementedFallback());
  }
}

}  // namespace narrowcast
