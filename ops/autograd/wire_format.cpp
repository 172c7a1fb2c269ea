// Rounding has no useful gradient, see autograd/affine_uint8.cpp.
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

namespace narrowcast {

TORCH_LIBRARY_IMPL(narrowcast, Autograd, m) {
  for (const char* name : {"encode", "decode"}) {
    m.impl(name, torch::autograd::autogradNotImplementedFallback());
  }
}

}  // namespace narrowcast
