// Weight-only int8 of TorchScript modules: made as Python's compiler names them, saved and loaded first.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/serialization/import.h>

#include <memory>
#include <set>
#include <sstream>
#include <string>

#include <narrowcast/weight_only_int8.h>
#include "models/weight_only_int8.h"

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

// Whatever it is called: it has a weight by which it multiplies.
TEST(WeightOnlyInt8ScriptModule, ConvertsAModuleThatMultipliesByItsWeightAmongOtherThings) {
  Module other = make_module(new_unit(), "mine.Scaled");
  other.register_parameter("weight", at::randn({3, 8}), /*is_buffer=*/false);
  other.define(
      "def product(self, x):\n    return torch.linear(x, self.weight)\n"
      "def forward(self, x):\n    y = self.product(x)\n    if bool(x.sum() > 1e9):\n"
      "        y = torch.linear(x + 1, self.weight)\n    return torch.relu(y) * 2\n");
  const ScriptWeightOnlyInt8QuantHandler handler(save_and_load(other));
  Module converted = save_and_load(handler.convert_for_runtime());
  const auto [codes, scales, unused] =
      dynamically_quantize_per_channel(other.attr("weight").toTensor().detach(), -128, 127, at::kChar);
  for (const double size : {1.0, 1e10}) {
    const at::Tensor x = at::rand({2, 8}) * size;
    EXPECT_TRUE(run(converted, x).equal(weight_only_int8_linear(size > 1 ? x + 1 : x, codes, scales).relu() * 2));
  }
}

TEST(WeightOnlyInt8ScriptModule, LeavesOtherModulesAlone) {
  Module other = make_module(new_unit(), "mine.Table");
  other.register_parameter("weight", at::randn({3, 8}), /*is_buffer=*/false);
  other.define("def forward(self, x):\n    return torch.mm(x, self.weight.t())\n");
  const ScriptWeightOnlyInt8QuantHandler handler(other);
  EXPECT_TRUE(handler.layers_that_stay().empty());
  Module converted = handler.convert_for_runtime();
  const at::Tensor x = at::randn({2, 8});
  EXPECT_TRUE(run(converted, x).equal(run(other, x)));
}

// A weight in two places is one again, in memory and in the file.
TEST(WeightOnlyInt8ScriptModule, KeepsASharedWeightOne) {
  const Unit unit = new_unit();
  const Module layer = make_linear(unit, 8, 8);
  Module tied(unit, layer.type());
  tied.setattr("weight", layer.attr("weight"));
  tied.setattr("bias", at::randn({8}));
  Module net = make_module(unit, "Net");
  for (const auto& [name, module] : {std::pair("a", layer), std::pair("same", layer), std::pair("tied", tied)}) {
    net.register_module(name, module);
  }
  net.define("def forward(self, x):\n    return self.tied.forward(self.same.forward(self.a.forward(x)))\n");
  const StateDict state = state_of(save_and_load(ScriptWeightOnlyInt8QuantHandler(net).convert_for_runtime()));
  for (const std::string entry : {".weight", ".scales"}) {
    EXPECT_EQ(state.at("same" + entry).data_ptr(), state.at("a" + entry).data_ptr());
    EXPECT_EQ(state.at("tied" + entry).data_ptr(), state.at("a" + entry).data_ptr());
  }
}

// The module with the values of its int8 weights in their place.
void round_weights(Module& module, const StateDict& state) {
  const at::NoGradGuard no_grad;
  for (const auto& item : module.named_parameters()) {
    const std::string layer = item.name.substr(0, item.name.rfind('.'));
    if (state.at(item.name).scalar_type() != at::kChar) continue;
    item.value.copy_(state.at(item.name) * state.at(layer + ".scales").unsqueeze(1));
  }
}

// What stays of a module in float64, "NAME: REASON" each. The others are converted, and the whole computes what it did
// with rounded weights: sums of some numbers below 1000 are 1e-9 apart at most.
std::string floats_of_doubles(const Module& module) {
  Module loaded = save_and_load(module);
  const ScriptWeightOnlyInt8QuantHandler handler(loaded);
  const StateDict state = handler.create_quantized_state_dict();
  Module converted = save_and_load(handler.convert_for_runtime());
  expect_equal(state_of(converted), state);
  std::string floats;
  for (const FloatLayer& layer : handler.layers_that_stay()) {
    EXPECT_TRUE(state.at(layer.name + ".weight").equal(state_of(loaded).at(layer.name + ".weight"))) << layer.name;
    floats += layer.name + ": " + layer.reason + "\n";
  }
  const at::Tensor x = at::randn({4, 8}, at::kDouble);
  EXPECT_FALSE(run(converted, x).allclose(run(loaded, x), /*rtol=*/0, /*atol=*/1e-9)) << floats;
  round_weights(loaded, state);
  EXPECT_TRUE(run(converted, x).allclose(run(loaded, x), /*rtol=*/0, /*atol=*/1e-9)) << floats;
  return floats;
}

std::string floats_of(const Module& module) {
  Module doubles = save_and_load(module);
  doubles.to(at::kDouble);
  return floats_of_doubles(doubles);
}

TEST(WeightOnlyInt8ScriptModuleLeaves, ALayerThatDoesMoreWithItsWeight) {
  const Unit unit = new_unit();
  Module net = make_module(unit, "Net");
  net.register_module(
      "odd",
      make_linear(unit, 8, 8, "def forward(self, x):\n    return torch.linear(x, self.weight * 2, self.bias)\n"));
  net.register_module("even", make_linear(unit, 8, 3));
  net.define("def forward(self, x):\n    return self.even.forward(self.odd.forward(x))\n");
  EXPECT_EQ(floats_of(net), "odd: its method forward does more with the weight than multiply by it\n");
}

TEST(WeightOnlyInt8ScriptModuleLeaves, ALayerWhoseWeightAnotherModuleReads) {
  const std::string read = "def forward(self, x):\n    y = x\n    if bool(x.sum() > -1e9):\n";
  const std::string rest = "    return self.inner.third.forward(self.second.forward(y)) + self.offset\n";
  EXPECT_EQ(floats_of(make_net(read + "        y = torch.mm(y, self.first.weight)\n" + rest)),
            "first: the module uses its weight itself\n"
            "second: it is of one TorchScript type with 'first', which cannot be converted: the module uses its weight "
            "itself\n");
  EXPECT_EQ(floats_of(make_net(read + "        y = torch.mm(y, self.inner.third.weight.t())[:, :1] + y\n" + rest)),
            "inner.third: the module uses its weight itself\n");
}

TEST(WeightOnlyInt8ScriptModuleLeaves, ALayerThatMultipliesNothing) {
  const Unit unit = new_unit();
  Module unused = make_module(unit, "torch.nn.modules.linear.Linear");
  unused.register_parameter("weight", at::randn({3, 8}), /*is_buffer=*/false);
  Module net = make_module(unit, "Net");
  net.register_module("unused", unused);
  net.register_module("used", make_linear(unit, 8, 3));
  net.define("def forward(self, x):\n    return self.used.forward(x)\n");
  EXPECT_EQ(floats_of(net), "unused: none of its methods multiplies by its weight\n");
}

TEST(WeightOnlyInt8ScriptModuleLeaves, ALayerThatHasScalesAlready) {
  const Unit unit = new_unit();
  Module scaled = make_linear(unit, 8, 8);
  scaled.register_buffer("scales", at::ones({8}));
  Module net = make_module(unit, "Net");
  net.register_module("scaled", scaled);
  net.register_module("third", make_linear(unit, 8, 3));
  net.define("def forward(self, x):\n    return self.third.forward(self.scaled.forward(x))\n");
  EXPECT_EQ(floats_of(net), "scaled: it has an attribute 'scales' of its own\n");
}

// A net whose a and b are of one type, which does not say what their weights are; `use` is what the net makes of b.
Module make_unlike_pair(const at::Tensor& weight_of_b, const std::string& use) {
  const Unit unit = new_unit();
  const Module a = make_linear(unit, 8, 8, "def forward(self, input):\n    return torch.linear(input, self.weight)\n");
  Module b(unit, a.type());
  b.setattr("weight", at::randn({8, 8}));
  b.setattr("bias", at::randn({8}));
  Module net = make_module(unit, "Net");
  net.register_module("a", a);
  net.register_module("b", b);
  net.register_module("head", make_linear(unit, 8, 3));
  net.define("def forward(self, x):\n    return self.head.forward(self.a.forward(x)) + " + use + "\n");
  net.to(at::kDouble);
  b.setattr("weight", weight_of_b);
  return net;
}

TEST(WeightOnlyInt8ScriptModuleLeaves, ATypeOfWhichOneWeightIsNoFloatingMatrix) {
  const at::Tensor complex = at::randn({8, 8}, at::kComplexDouble);
  const std::string floats =
      "a: it is of one TorchScript type with 'b', which cannot be converted: its weight is no floating matrix\n"
      "b: its weight is no floating matrix\n";
  EXPECT_EQ(floats_of_doubles(make_unlike_pair(complex, "torch.real(self.b.forward(torch.complex(x, x))).sum()")),
            floats);
  EXPECT_EQ(
      floats_of_doubles(make_unlike_pair(complex, "torch.real(torch.mm(torch.complex(x, x), self.b.weight)).sum()")),
      floats);
  EXPECT_EQ(floats_of_doubles(make_unlike_pair(at::randn({8}, at::kDouble), "self.b.forward(x).sum()")), floats);
}

TEST(WeightOnlyInt8ScriptModule, RunsInFloat64) {
  Module net = make_net();
  net.to(at::kDouble);
  const at::Tensor x = at::randn({5, 8}, at::kDouble);
  const ScriptWeightOnlyInt8QuantHandler handler(net);
  const StateDict state = handler.create_quantized_state_dict();
  EXPECT_EQ(state.at("first.scales").scalar_type(), at::kDouble);
  Module converted = save_and_load(handler.convert_for_runtime());
  EXPECT_TRUE(run(converted, x).equal(run_by_hand(state, x)));
}

}  // namespace
}  // namespace narrowcast::models
