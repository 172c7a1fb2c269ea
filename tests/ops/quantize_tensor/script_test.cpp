// The FP16 and BFP16 operators in TorchScript.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <vector>

#include <narrowcast/quantize_tensor.h>
#include "tests/ops/affine_uint8_reference.h"
#include "tests/ops/script.h"

namespace narrowcast {
namespace {

using test::same_bits;

constexpr const char* kScript = R"(
def round_trip(self, x):
    q = narrowcast.quantize_tensor(x, "bfp16")
    return narrowcast.dequantize_tensor(q, "bfp16")
def round_trip_of_list(self, xs: List[Tensor], quant_loss: float):
    qs = narrowcast.quantize_tensor_list(xs, "fp16")
    return narrowcast.dequantize_tensor_list(qs, "fp16", quant_loss)
)";

void expect_round_trips(torch::jit::Module module) {
  const at::Tensor x = at::randn({4, 300});
  const std::vector<at::Tensor> xs{x, at::randn({5})};
  const at::Tensor expected = dequantize_tensor(quantize_tensor(x, DQuantType::kBfp16), DQuantType::kBfp16);
  const auto expected_list =
      dequantize_tensor_list(quantize_tensor_list(xs, DQuantType::kFp16), DQuantType::kFp16, 1.7);
  for (int run = 0; run < test::kRunsUntilSettled; ++run) {
    EXPECT_TRUE(same_bits(module.run_method("round_trip", x).toTensor(), expected));
    const auto list = module.run_method("round_trip_of_list", xs, 1.7).toTensorVector();
    ASSERT_EQ(list.size(), xs.size());
    EXPECT_TRUE(same_bits(list[0], expected_list[0]));
    EXPECT_TRUE(same_bits(list[1], expected_list[1]));
  }
}

TEST(QuantizeTensorScript, RunsBeforeAndAfterSaving) {
  const torch::jit::Module module = test::compile(kScript);
  expect_round_trips(module);
  expect_round_trips(test::save_and_load(module));
}

}  // namespace
}  // namespace narrowcast
