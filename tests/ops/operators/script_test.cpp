// The operators that need no other rank, in TorchScript.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <string>
#include <vector>

#include <narrowcast/affine_uint8.h>
#include <narrowcast/quantize_tensor.h>
#include <narrowcast/weight_only_int8.h>
#include <narrowcast/wire_format.h>
#include "tests/ops/affine_uint8/reference.h"
#include "tests/ops/operators/script.h"

namespace narrowcast {
namespace {

using test::same_bits;

constexpr const char* kAffineUint8 = R"(
def round_trip(self, x):
    scale, zero_point = narrowcast.choose_qparams_per_tensor(x)
    codes = narrowcast.quantize_per_tensor(x, scale, zero_point)
    return narrowcast.dequantize_per_tensor(codes, scale, zero_point)
def round_trip_per_channel(self, x):
    scales, zero_points = narrowcast.choose_qparams_per_channel(x)
    codes = narrowcast.quantize_per_channel(x, scales, zero_points)
    return narrowcast.dequantize_per_channel(codes, scales, zero_points)
)";

void expect_affine_uint8(torch::jit::Module module) {
  const at::Tensor x = at::randn({4, 300});
  const auto [scale, zero_point] = choose_qparams_per_tensor(x);
  const at::Tensor codes = quantize_per_tensor(x, scale, zero_point);
  const auto [scales, zero_points] = choose_qparams_per_channel(x);
  const at::Tensor channel_codes = quantize_per_channel(x, scales, zero_points);
  for (int run = 0; run < test::kRunsUntilSettled; ++run) {
    EXPECT_TRUE(
        same_bits(module.run_method("round_trip", x).toTensor(), dequantize_per_tensor(codes, scale, zero_point)));
    EXPECT_TRUE(same_bits(module.run_method("round_trip_per_channel", x).toTensor(),
                          dequantize_per_channel(channel_codes, scales, zero_points)));
  }
}

constexpr const char* kQuantizeTensor = R"(
def round_trip(self, x):
    q = narrowcast.quantize_tensor(x, "bfp16")
    return narrowcast.dequantize_tensor(q, "bfp16")
def round_trip_of_list(self, xs: List[Tensor], quant_loss: float):
    qs = narrowcast.quantize_tensor_list(xs, "fp16")
    return narrowcast.dequantize_tensor_list(qs, "fp16", quant_loss)
)";

void expect_quantize_tensor(torch::jit::Module module) {
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

constexpr const char* kWeightOnlyInt8 = R"(
def forward(self, x, w):
    codes, scales, zero_points = narrowcast.dynamically_quantize_per_channel(w, -128, 127, 1)
    return narrowcast.weight_only_int8_linear(x, codes, scales)
def with_bias(self, x, codes, scales, bias):
    return narrowcast.weight_only_int8_linear(x, codes, scales, bias)
)";

void expect_weight_only_int8(torch::jit::Module module) {
  const at::Tensor x = at::randn({6, 40}).requires_grad_();
  const at::Tensor w = at::randn({9, 40});
  const auto [codes, scales, unused] = dynamically_quantize_per_channel(w, -128, 127, at::kChar);
  const at::Tensor bias = at::randn({9});
  for (int i = 0; i < test::kRunsUntilSettled; ++i) {
    EXPECT_TRUE(same_bits(module.forward({x, w}).toTensor(), weight_only_int8_linear(x, codes, scales)));
    const at::Tensor y = module.run_method("with_bias", x, codes, scales, bias).toTensor();
    EXPECT_TRUE(same_bits(y, weight_only_int8_linear(x, codes, scales, bias)));
    EXPECT_TRUE(torch::autograd::grad({y.sum()}, {x})[0].abs().sum().item<float>() > 0);
  }
}

constexpr const char* kWireFormat = R"(
def round_trip(self, x, format: str, step: int):
    message = narrowcast.encode(x, format, seed=3, step=step)
    assert message.numel() == narrowcast.encoded_size(x.numel(), format)
    return narrowcast.decode(message, format, x.numel())
)";

void expect_wire_format(torch::jit::Module module) {
  const at::Tensor x = at::randn({4, 300});
  for (const WireFormat format : kWireFormats) {
    const at::Tensor expected = decode(encode(x, format, {.seed = 3, .step = 8}), format, x.numel());
    for (int run = 0; run < test::kRunsUntilSettled; ++run) {
      const at::Tensor actual = module.run_method("round_trip", x, std::string(to_string(format)), 8).toTensor();
      EXPECT_TRUE(same_bits(actual, expected)) << format;
    }
  }
}

// Methods, and the checks of a module with these methods.
struct ScriptCase {
  const char* name;
  const char* source;
  void (*expect)(torch::jit::Module);
};

class OperatorsScript : public ::testing::TestWithParam<ScriptCase> {};

INSTANTIATE_TEST_SUITE_P(Families, OperatorsScript,
                         ::testing::Values(ScriptCase{"AffineUint8", kAffineUint8, &expect_affine_uint8},
                                           ScriptCase{"QuantizeTensor", kQuantizeTensor, &expect_quantize_tensor},
                                           ScriptCase{"WeightOnlyInt8", kWeightOnlyInt8, &expect_weight_only_int8},
                                           ScriptCase{"WireFormat", kWireFormat, &expect_wire_format}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(OperatorsScript, RunsBeforeAndAfterSaving) {
  const torch::jit::Module module = test::compile(GetParam().source);
  GetParam().expect(module);
  GetParam().expect(test::save_and_load(module));
}

}  // namespace
}  // namespace narrowcast
