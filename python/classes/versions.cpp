// Versions, which the Python package compares with the installed torch and returns to its users.
#include <c10/util/StringUtil.h>
#include <torch/library.h>
#include <torch/version.h>

#include <string>

namespace narrowcast::classes {

TORCH_LIBRARY_FRAGMENT(narrowcast, library) {
  // "MAJOR.MINOR" of the LibTorch that this library was compiled for.
  library.def("libtorch_version() -> str", [] { return c10::str(TORCH_VERSION_MAJOR, ".", TORCH_VERSION_MINOR); });
  // narrowcast's own version.
  library.def("version() -> str", [] { return std::string(NARROWCAST_VERSION); });
}

}  // namespace narrowcast::classes
