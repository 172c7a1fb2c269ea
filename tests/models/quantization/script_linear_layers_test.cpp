// Tests which Linear layers of a TorchScript module are not converted.
#include "models/quantization/script_module.h"

#include <gtest/gtest.h>

#include <string>

#include "models/quantization/weight_only_int8.h"
#include "tests/models/imported/script_modules.h"
#include "tests/models/quantization/state_dicts.h"

namespace narrowcast::models {
namespace {

using testing::expect_equal;
using testing::make_linear;
using testing::make_module;
using testing::make_net;
using testing::new_unit;
using testing::run;
using testing::save_and_load;
using testing::state_of;
using testing::Unit;
using torch::jit::Module;

// Replaces the module's weights by the values of its int8 weights.
void round_weights(Module& module, const StateDict& state) {
  const at::NoGradGuard no_grad;
  for (const auto& item : module.named_parameters()) {
    const std::string layer = item.name.substr(0, item.name.rfind('.'));
    if (state.at(item.name).scalar_type() != at::kChar) continue;
    item.value.copy_(state.at(item.name) * state.at(layer + ".scales").unsqueeze(1));
  }
}

// The layers of a float64 module that are not converted, "NAME: REASON" each. Checks that the module with the converted
// layers computes the same as with rounded weights: sums of some numbers below 1000 differ by at most 1e-9.
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

TEST(ScriptLinearLayersLeave, ALayerThatDoesMoreWithItsWeight) {
  const Unit unit = new_unit();
  Module net = make_module(unit, "Net");
  net.register_module(
      "odd",
      make_linear(unit, 8, 8, "def forward(self, x):\n    return torch.linear(x, self.weight * 2, self.bias)\n"));
  net.register_module("even", make_linear(unit, 8, 3));
  net.define("def forward(self, x):\n    return self.even.forward(self.odd.forward(x))\n");
  EXPECT_EQ(floats_of(net), "odd: its method forward uses the weight in another operation than a multiplication\n");
}

TEST(ScriptLinearLayersLeave, ALayerWhoseWeightAnotherModuleReads) {
  const std::string read = "def forward(self, x):\n    y = x\n    if bool(x.sum() > -1e9):\n";
  const std::string rest = "    return self.inner.third.forward(self.second.forward(y)) + self.offset\n";
  EXPECT_EQ(floats_of(make_net(read + "        y = torch.mm(y, self.first.weight)\n" + rest)),
            "first: the module uses its weight directly\n"
            "second: it has the same TorchScript type as 'first', which cannot be converted: the module uses its "
            "weight directly\n");
  EXPECT_EQ(floats_of(make_net(read + "        y = torch.mm(y, self.inner.third.weight.t())[:, :1] + y\n" + rest)),
            "inner.third: the module uses its weight directly\n");
}

TEST(ScriptLinearLayersLeave, ALayerThatMultipliesNothing) {
  const Unit unit = new_unit();
  Module unused = make_module(unit, "torch.nn.modules.linear.Linear");
  unused.register_parameter("weight", at::randn({3, 8}), /*is_buffer=*/false);
  Module net = make_module(unit, "Net");
  net.register_module("unused", unused);
  net.register_module("used", make_linear(unit, 8, 3));
  net.define("def forward(self, x):\n    return self.used.forward(x)\n");
  EXPECT_EQ(floats_of(net), "unused: none of its methods multiplies by its weight\n");
}

TEST(ScriptLinearLayersLeave, ALayerThatHasScalesAlready) {
  const Unit unit = new_unit();
  Module scaled = make_linear(unit, 8, 8);
  scaled.register_buffer("scales", at::ones({8}));
  Module net = make_module(unit, "Net");
  net.register_module("scaled", scaled);
  net.register_module("third", make_linear(unit, 8, 3));
  net.define("def forward(self, x):\n    return self.third.forward(self.scaled.forward(x))\n");
  EXPECT_EQ(floats_of(net), "scaled: it already has an attribute 'scales'\n");
}

// A net whose layers a and b share a type although their weights differ; `use` is the net's use of b.
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

TEST(ScriptLinearLayersLeave, ATypeOfWhichOneWeightIsNoFloatingMatrix) {
  const at::Tensor complex = at::randn({8, 8}, at::kComplexDouble);
  const std::string floats =
      "a: it has the same TorchScript type as 'b', which cannot be converted: its weight is not a floating-point "
      "matrix\n"
      "b: its weight is not a floating-point matrix\n";
  EXPECT_EQ(floats_of_doubles(make_unlike_pair(complex, "torch.real(self.b.forward(torch.complex(x, x))).sum()")),
            floats);
  EXPECT_EQ(
      floats_of_doubles(make_unlike_pair(complex, "torch.real(torch.mm(torch.complex(x, x), self.b.weight)).sum()")),
      floats);
  EXPECT_EQ(floats_of_doubles(make_unlike_pair(at::randn({8}, at::kDouble), "self.b.forward(x).sum()")), floats);
}

}  // namespace
}  // namespace narrowcast::models
