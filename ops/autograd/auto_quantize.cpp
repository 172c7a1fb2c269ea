// What arrives is rounded, and comes from other ranks: there is no derivative, and backward says so.
#include <torch/library.h>

#include "ops/autograd/write_without_derivative.h"

namespace narrowcast {

TORCH_LIBRARY_IMPL(narrowcast, Autograd, m) {
  for (const char* name : {"auto_quantize_all_gather", "auto_quantize_all_to_all", "auto_quantize_all_to_all_single"}) {
    m.impl(name, autograd::write_without_derivative_fallback());
  }
}

}  // namespace narrowcast
