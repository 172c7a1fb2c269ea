// libFuzzer's entry point, for any fuzzer that supports it: NARROWCAST_FUZZ_TARGET names the target.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "tests/fuzz/target.h"

namespace {

const narrowcast::fuzz::Target& chosen_target() {
  const char* const name = std::getenv("NARROWCAST_FUZZ_TARGET");
  const auto* const target = narrowcast::fuzz::find_target(name == nullptr ? "" : name);
  if (target == nullptr) {
    std::fprintf(stderr, "NARROWCAST_FUZZ_TARGET must name a target: narrowcast_fuzz --list prints them\n");
    std::exit(2);
  }
  return *target;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const narrowcast::fuzz::Target& target = chosen_target();
  narrowcast::fuzz::run_target(target, {reinterpret_cast<const char*>(data), size});
  return 0;
}
