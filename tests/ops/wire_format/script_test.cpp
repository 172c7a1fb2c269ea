// The operators on wire formats in TorchScript.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <narrowcast/wire_format.h>
#include "tests/ops/affine_uint8_reference.h"
#include "tests/ops/script.h"

namespace narrowcast {
namespace {

constexpr const char* kScript = R"(
def round_trip(self, x, format: str, step: int):
    message = narrowcast.encode(x, format, seed=3, step=step)
    assert message.numel() == narrowcast.encoded_size(x.numel(), format)
    return narrowcast.decode(message, format, x.numel())
)";

void expect_round_trips(torch::jit::Module module) {
  const at::Tensor x = at::randn({4, 300});
  for (const WireFormat format : kWireFormats) {
    const at::Tensor expected = decode(encode(x, format, {.seed = 3, .step = 8}), format, x.numel());
    for (int run = 0; run < test::kRunsUntilSettled; ++run) {
      const at::Tensor actual = module.run_method("round_trip", x, std::string(to_string(format)), 8).toTensor();
      EXPECT_TRUE(test::same_bits(actual, expected)) << format;
    }
  }
}

TEST(WireFormatScript, RunsBeforeAndAfterSaving) {
  const torch::jit::Module module = test::compile(kScript);
  expect_round_trips(module);
  expect_round_trips(test::save_and_load(module));
}

}  // namespace
}  // namespace narrowcast
