// The C++ examples of docs/reference/operators.md and docs/guide/operators.md, word for word (compared by
// tests/structure/check_examples), and checks of their results.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/frontend/resolver.h>
#include <torch/csrc/jit/frontend/sugared_value.h>
#include <torch/csrc/jit/serialization/import.h>

#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <narrowcast/affine_uint8.h>
#include <narrowcast/auto_quantize.h>
#include <narrowcast/quantize_tensor.h>
#include <narrowcast/quantized_all_reduce.h>
#include <narrowcast/quantized_reduce_scatter.h>
#include <narrowcast/weight_only_int8.h>
#include <narrowcast/wire_format.h>
#include "tests/ops/affine_uint8/reference.h"
#include "tests/support/ranks.h"

namespace narrowcast {
namespace {

using test::same_bits;

struct WithNarrowcast : torch::jit::NativeResolver {
  std::shared_ptr<torch::jit::SugaredValue> resolveValue(const std::string& name, torch::jit::GraphFunction& function,
                                                         const torch::jit::SourceRange& place) override {
    if (name == "narrowcast") return std::make_shared<torch::jit::BuiltinModule>(name);
    return NativeResolver::resolveValue(name, function, place);
  }
};

TEST(OperatorsDocument, CompilesTorchScript) {
  std::stringstream file;
  torch::jit::Module module("compress");
  module.define(R"(
def forward(self, x):
    q = narrowcast.quantize_tensor(x, "bfp16")
    return narrowcast.dequantize_tensor(q, "bfp16")
)",
                std::make_shared<WithNarrowcast>());
  module.save(file);
  const at::Tensor x = at::tensor({1.0F, 100000.0F});
  EXPECT_TRUE(same_bits(torch::jit::load(file).forward({x}).toTensor(), at::tensor({1.0F, 99840.0F})));
}

TEST(OperatorsDocument, AffineUint8) {
  const at::Tensor x = at::tensor({-1.0F, 0.0F, 2.0F});
  const auto [scale, zero_point] = choose_qparams_per_tensor(x);            // {3 / 255}, {85}
  const at::Tensor codes = quantize_per_tensor(x, scale, zero_point);       // {0, 85, 255}
  const at::Tensor same = dequantize_per_tensor(codes, scale, zero_point);  // {-1, 0, 2}

  const at::Tensor rows = at::randn({64, 512});
  const auto [scales, zero_points] = choose_qparams_per_channel(rows);  // float32 [64], int32 [64]
  const at::Tensor row_codes = quantize_per_channel(rows, scales, zero_points);
  const at::Tensor close = dequantize_per_channel(row_codes, scales, zero_points);

  EXPECT_TRUE(same_bits(scale, at::tensor({3.0F / 255})));
  EXPECT_TRUE(same_bits(zero_point, at::tensor({85}, at::kInt)));
  EXPECT_TRUE(same_bits(codes, at::tensor({0, 85, 255}, at::kByte)));
  EXPECT_TRUE(same_bits(same, x));
  EXPECT_EQ(scales.sizes(), at::IntArrayRef({64}));
  // Half a step, plus the rounding of scale, x / scale, product and difference: 2^-24 of at most 256 steps each.
  EXPECT_TRUE(((close - rows).abs() <= scales.unsqueeze(1) * (0.5 + 4 * 256 * 0x1p-24)).all().item<bool>());
}

TEST(OperatorsDocument, QuantizeTensor) {
  const at::Tensor x = at::tensor({1.0F, 100000.0F});
  const at::Tensor q = quantize_tensor(x, DQuantType::kFp16);
  const at::Tensor clamped = dequantize_tensor(q, DQuantType::kFp16);  // {1, 65504}

  const std::vector<at::Tensor> qs = quantize_tensor_list({x, at::eye(3)}, DQuantType::kBfp16);
  const std::vector<at::Tensor> halves = dequantize_tensor_list(qs, DQuantType::kBfp16, /*quant_loss=*/2.0);

  EXPECT_TRUE(same_bits(clamped, at::tensor({1.0F, 65504.0F})));
  EXPECT_TRUE(same_bits(halves[1], at::eye(3) / 2));
}

// Two ranks; rank r has {r, r}.
void exchange(int64_t rank, const collectives::Group& group) {
  const at::Tensor input = at::full({2}, static_cast<double>(rank));
  const std::vector<at::Tensor> inputs{input, input + 10};
  const std::vector<at::Tensor> outputs{at::zeros({2}), at::zeros({2})};
  const at::Tensor rows = input;
  const at::Tensor rows_received = at::zeros({2});

  const auto all_gather = auto_quantize(collectives::all_gather, DQuantType::kBfp16);
  all_gather(outputs, input, group);
  const auto work = all_gather.async(outputs, input, group);
  work->wait();

  EXPECT_TRUE(same_bits(outputs[1], at::ones({2})));

  const auto all_to_all = auto_quantize(collectives::all_to_all, DQuantType::kFp16, /*quant_loss=*/1.0);
  all_to_all(outputs, inputs, group);

  const auto all_to_all_single = auto_quantize(collectives::all_to_all_single, DQuantType::kFp16);
  all_to_all_single(rows_received, rows, group);

  EXPECT_TRUE(same_bits(outputs[1], at::ones({2}) + 10.0 * static_cast<double>(rank)));
  EXPECT_TRUE(same_bits(rows_received, at::tensor({0.0F, 1.0F})));
}

TEST(OperatorsDocument, Collectives) { testing::run_ranks(2, &exchange); }

TEST(OperatorsDocument, WeightOnlyInt8) {
  const at::Tensor weight = at::randn({16, 32});  // [out, in]
  const auto [int8, scales, zero_points] = dynamically_quantize_per_channel(weight, -128, 127, at::kChar);
  const at::Tensor input = at::randn({2, 5, 32});
  const at::Tensor output = weight_only_int8_linear(input, int8, scales);  // [2, 5, 16]

  EXPECT_EQ(int8.scalar_type(), at::kChar);
  EXPECT_TRUE(same_bits(zero_points, at::zeros({16}, at::kLong)));
  EXPECT_EQ(output.sizes(), at::IntArrayRef({2, 5, 16}));
}

TEST(OperatorsDocument, WireFormats) {
  const at::Tensor gradient = at::randn({1000});
  const at::Tensor message = encode(gradient, WireFormat::kInt8B128);  // uint8 [1016]
  const at::Tensor decoded = decode(message, WireFormat::kInt8B128, gradient.numel());
  const int64_t bytes = encoded_size(gradient.numel(), parse_wire_format("int4_b32"));  // 564

  const EncodeOptions unbiased{.seed = 1, .step = 20};
  const at::Tensor rounded_at_random = encode(gradient, WireFormat::kInt4B32, unbiased);

  EXPECT_EQ(message.numel(), 1016);
  EXPECT_EQ(bytes, 564);
  EXPECT_EQ(rounded_at_random.numel(), bytes);
  // Half a scale, which is at most 1 + 2^-7 times the largest magnitude / 127, plus 2^-16 for the rounding of the
  // quotient.
  const double bound = gradient.abs().max().item<double>() / 127 * (1 + 0x1p-7) * (0.5 + 0x1p-16);
  EXPECT_LE((decoded - gradient).abs().max().item<double>(), bound);
}

TEST(OperatorsDocument, AveragesOverRanks) {
  const auto average = [](const at::Tensor& gradient, const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
    const at::Tensor mean = quantized_all_reduce(gradient, WireFormat::kInt8B128, group);
    quantized_all_reduce_(gradient, WireFormat::kInt4B32, group);  // In place.
    quantized_all_reduce_(gradient, WireFormat::kInt4B32, group, Levels::kOne);
    return mean;
  };
  testing::run_ranks(2, [&](int64_t rank, const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
    const at::Tensor gradient = at::full({3}, rank == 0 ? 127 : 254);
    EXPECT_TRUE(at::equal(average(gradient.to(at::kFloat), group), at::full({3}, 190.5F)));
  });
}

TEST(OperatorsDocument, ReducesToShards) {
  testing::run_ranks(2, [&](int64_t rank, const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
    const at::Tensor gradients = at::full({6}, rank == 0 ? 127.0F : 254.0F);

    const at::Tensor shard = at::empty({gradients.numel() / group->getSize()});
    quantized_reduce_scatter_(shard, gradients, WireFormat::kInt8B128, parse_reduction("mean"), group);

    EXPECT_TRUE(at::equal(shard, at::full({3}, 190.5F)));
  });
}

}  // namespace
}  // namespace narrowcast
