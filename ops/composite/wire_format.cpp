// encoded_size: arithmetic on sizes, which are symbols while a program is
// traced. It has no tensor, and so no device; of the keys that such a call can
// reach, CompositeExplicitAutograd is the one that serves every device as well.
#include <c10/core/SymInt.h>
#include <torch/library.h>

#include <string_view>

#include "ops/meta/wire_format.h"

namespace narrowcast {
namespace {

c10::SymInt encoded_size_kernel(c10::SymInt numel, std::string_view format) {
  return meta::encoded_size(numel, format);
}

}  // namespace

TORCH_LIBRARY_IMPL(narrowcast, CompositeExplicitAutograd, m) { m.impl("encoded_size", &encoded_size_kernel); }

}  // namespace narrowcast
