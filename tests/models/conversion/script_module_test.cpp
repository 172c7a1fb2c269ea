// Weight-only int8 of TorchScript modules: made as Python's compiler names them, saved and loaded first.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/serialization/import.h>

#include <memory>
#include <set>
#include <sstream>
#include <string>

#include "models/weight_only_int8.h"
#include "ops/weight_only_int8.h"
#include "tests/support/error_message.h"

namespace narrowcast::models {
namespace {

using torch::jit::Module;

constexpr const char* kLinearForward =
    "def forward(self, input):\n    return torch.linear(input, self.weight, self.bias)\n";

std::shared_ptr<torch::jit::CompilationUnit> new_unit() { return std::make_shared<torch::jit::CompilationUnit>(); }

using Unit = std::shared_ptr<torch::jit::CompilationUnit>;

Module make_module(const Unit& unit, const std::string& name) {
  return Module(c10::QualifiedName("__torch__." + name), unit, /*shouldMangle=*/true);
}

Module make_linear(const Unit& unit, int64_t inputs, int64_t outputs, const char* forward = kLinearForward) {
  Module linear = make_module(unit, "torch.nn.modules.linear.Linear");
  linear.register_parameter("weight", at::randn({outputs, inputs}), /*is_buffer=*/false);
  linear.register_parameter("bias", at::randn({outputs}), /*is_buffer=*/false);
  linear.define(forward);
  return linear;
}

// first and second share a type, third is of its own.
Module make_net(const std::string& forward =
                    "def forward(self, x):\n"
                    "    y = torch.relu(self.second.forward(torch.relu(self.first.forward(x))))\n"
                    "    return self.inner.third.forward(y) + self.offset\n") {
  const Unit unit = new_unit();
  Module first = make_linear(unit, 8, 8);
  Module second(unit, first.type());
  second.setattr("weight", at::randn({8, 8}));
  second.setattr("bias", at::randn({8}));
  Module inner = make_module(unit, "Inner");
  inner.register_module("third", make_linear(unit, 8, 3));
  Module net = make_module(unit, "Net");
  net.register_module("first", first);
  net.register_module("second", second);
  net.register_module("inner", inner);
  net.register_buffer("offset", at::randn({3}));
  net.define(forward);
  return net;
}

Module save_and_load(const Module& module) {
  std::stringstream file;
  module.save(file);
  return torch::jit::load(file);
}

at::Tensor run(Module& module, const at::Tensor& x) { return module.forward({x}).toTensor(); }

StateDict state_of(const Module& module) {
  StateDict state;
  for (const auto& item : module.named_parameters()) state.emplace(item.name, item.value);
  for (const auto& item : module.named_buffers()) state.emplace(item.name, item.value);
  return state;
}

void expect_equal(const StateDict& actual, const StateDict& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    ASSERT_TRUE(actual.contains(name)) << name;
    EXPECT_EQ(actual.at(name).scalar_type(), tensor.scalar_type()) << name;
    EXPECT_TRUE(actual.at(name).equal(tensor)) << name;
  }
}

at::Tensor run_by_hand(const StateDict& state, const at::Tensor& x) {
  const auto layer = [&](const std::string& name, const at::Tensor& input) {
    return weight_only_int8_linear(input, state.at(name + ".weight"), state.at(name + ".scales"),
                                   state.at(name + ".bias"));
  };
  return layer("inner.third", layer("second", layer("first", x).relu()).relu()) + state.at("offset");
}

TEST(WeightOnlyInt8ScriptModule, HasTheReferencesStateDict) {
  const Module net = make_net();
  const StateDict state = ScriptWeightOnlyInt8QuantHandler(net).create_quantized_state_dict();
  EXPECT_EQ(state.size(), 3 * 3 + 1);
  for (const std::string name : {"first", "second", "inner.third"}) {
    const auto [codes, scales, unused] =
        dynamically_quantize_per_channel(state_of(net).at(name + ".weight").detach(), -128, 127, at::kChar);
    EXPECT_TRUE(state.at(name + ".weight").equal(codes));
    EXPECT_TRUE(state.at(name + ".scales").equal(scales));
  }
}

TEST(WeightOnlyInt8ScriptModule, ConvertsSavesLoadsAndRuns) {
  Module loaded = save_and_load(make_net());
  const at::Tensor x = at::randn({5, 8});
  const at::Tensor before = run(loaded, x);  // Compiled and optimised before it is converted.
  const StateDict original = state_of(loaded);
  const ScriptWeightOnlyInt8QuantHandler handler(loaded);
  const StateDict expected = handler.create_quantized_state_dict();
  Module converted = handler.convert_for_runtime();
  Module reloaded = save_and_load(converted);
  for (Module* const module : {&converted, &reloaded}) {
    expect_equal(state_of(*module), expected);
    for (int i = 0; i < 3; ++i) {  // The executor changes what it runs in the first two.
      EXPECT_TRUE(run(*module, x).equal(run_by_hand(expected, x)));
    }
    EXPECT_EQ(module->named_parameters().size(), 3);  // the biases
  }
  expect_equal(state_of(loaded), original);
  EXPECT_TRUE(run(loaded, x).equal(before));
}

TEST(WeightOnlyInt8ScriptModule, ConvertsALayerWithoutBiasAndAModuleThatIsOne) {
  Module linear = make_module(new_unit(), "torch.nn.modules.linear.Linear");
  linear.register_parameter("weight", at::randn({3, 8}).to(at::kBFloat16), /*is_buffer=*/false);
  linear.register_attribute("bias", c10::NoneType::get(), c10::IValue());
  linear.define(kLinearForward);
  const ScriptWeightOnlyInt8QuantHandler handler(save_and_load(linear));
  const StateDict state = handler.create_quantized_state_dict();
  Module converted = save_and_load(handler.convert_for_runtime());
  const at::Tensor x = at::randn({2, 8}).to(at::kBFloat16);
  EXPECT_TRUE(run(converted, x).equal(weight_only_int8_linear(x, state.at("weight"), state.at("scales"))));
  EXPECT_EQ(state.at("scales").scalar_type(), at::kBFloat16);
}

TEST(WeightOnlyInt8ScriptModule, ConvertsTwiceToTheSame) {
  const Module once = ScriptWeightOnlyInt8QuantHandler(make_net()).convert_for_runtime();
  const Module twice = ScriptWeightOnlyInt8QuantHandler(once).convert_for_runtime();
  expect_equal(state_of(twice), state_of(once));
}

TEST(WeightOnlyInt8ScriptModule, LeavesOtherModulesAlone) {
  Module other = make_module(new_unit(), "mine.Linear");
  other.register_parameter("weight", at::randn({3, 8}), /*is_buffer=*/false);
  other.define("def forward(self, x):\n    return torch.linear(x, self.weight)\n");
  Module converted = ScriptWeightOnlyInt8QuantHandler(other).convert_for_runtime();
  const at::Tensor x = at::randn({2, 8});
  EXPECT_TRUE(run(converted, x).equal(run(other, x)));
}

std::string refusal(const Module& module) {
  return testing::error_message<c10::ValueError>(
      [&] { ScriptWeightOnlyInt8QuantHandler(save_and_load(module)).convert_for_runtime(); });
}

TEST(WeightOnlyInt8ScriptModuleErrors, NameALayerThatDoesMore) {
  const Unit unit = new_unit();
  Module net = make_module(unit, "Net");
  Module inner = make_module(unit, "Inner");
  inner.register_module(
      "odd",
      make_linear(unit, 8, 3, "def forward(self, x):\n    return torch.linear(x, self.weight * 2, self.bias)\n"));
  net.register_module("inner", inner);
  net.define("def forward(self, x):\n    return self.inner.odd.forward(x)\n");
  EXPECT_EQ(refusal(net),
            "submodule 'inner.odd' is a Linear whose method forward does more than one product of its input, weight "
            "and bias, and cannot be converted");
}

TEST(WeightOnlyInt8ScriptModuleErrors, NameWhoReadsALayersWeight) {
  EXPECT_EQ(
      refusal(make_net(
          "def forward(self, x):\n    y = x\n    if bool(x.sum() > 0):\n        y = torch.mm(y, self.first.weight)\n"
          "    return self.inner.third.forward(self.second.forward(y)) + self.offset\n")),
      "the module uses the weight of its Linear layer 'first' itself, so that this layer cannot be converted");
}

}  // namespace
}  // namespace narrowcast::models
