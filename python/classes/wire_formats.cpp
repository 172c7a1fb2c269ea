// Properties of wire formats, which the Python package checks.
#include <torch/library.h>

#include <string>

#include <narrowcast/wire_format.h>
#include "ops/codec/wire_format.h"

namespace narrowcast::classes {

TORCH_LIBRARY_FRAGMENT(narrowcast, library) {
  // Whether a message in this format lacks most elements. c10::ValueError for an unknown name.
  library.def("is_sparse_format(str format) -> bool",
              [](const std::string& format) { return codec::wire::is_sparse(parse_wire_format(format)); });
}

}  // namespace narrowcast::classes
