// Weight-only int8 of TorchScript modules: named as Python's compiler names them, then saved and loaded.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include <narrowcast/weight_only_int8.h>
#include "models/quantization/weight_only_int8.h"
#include "tests/models/imported/script_modules.h"
#include "tests/models/quantization/state_dicts.h"

namespace narrowcast::models {
namespace {

using testing::expect_equal;
using testing::kLinearForward;
using testing::make_linear;
using testing::make_module;
using testing::make_net;
using testing::new_unit;
using testing::run;
using testing::save_and_load;
using testing::state_of;
using testing::Unit;
using torch::jit::Module;

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
  const at::Tensor before = run(loaded, x);  // Compiled and optimised before the conversion.
  const StateDict original = state_of(loaded);
  const ScriptWeightOnlyInt8QuantHandler handler(loaded);
  const StateDict expected = handler.create_quantized_state_dict();
  Module converted = handler.convert_for_runtime();
  Module reloaded = save_and_load(converted);
  for (Module* const module : {&converted, &reloaded}) {
    expect_equal(state_of(*module), expected);
    for (int i = 0; i < 3; ++i) {  // The executor changes the code in the first two runs.
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

// The module's name does not matter: it has a weight by which it multiplies.
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

// A weight in two places remains shared, in memory and in the file.
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
