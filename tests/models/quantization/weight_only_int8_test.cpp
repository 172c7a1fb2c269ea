#include "models/quantization/weight_only_int8.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>

#include <set>
#include <sstream>

#include <narrowcast/char_gpt.h>
#include <narrowcast/mlp.h>
#include <narrowcast/weight_only_int8.h>
#include "tests/models/quantization/state_dicts.h"
#include "tests/support/error_message.h"

namespace narrowcast::models {
namespace {

using testing::error_message;
using testing::expect_equal;
using testing::keys_of;
using torch::nn::Sequential;

TEST(WeightOnlyInt8Linear, StartsEmptyWithTheStateDictsNames) {
  WeightOnlyInt8Linear layer(
      WeightOnlyInt8LinearOptions{.in_features = 3, .out_features = 2, .scales_dtype = at::kBFloat16});
  EXPECT_EQ(layer->named_buffers().keys(), (std::vector<std::string>{"weight", "scales"}));
  EXPECT_EQ(layer->named_parameters().keys(), std::vector<std::string>{"bias"});
  EXPECT_EQ(layer->weight.scalar_type(), at::kChar);
  EXPECT_EQ(layer->scales.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(layer(at::ones({5, 3})).equal(at::zeros({5, 2})));
}

TEST(WeightOnlyInt8Linear, TakesOverALinear) {
  for (const bool bias : {true, false}) {
    torch::nn::Linear linear(torch::nn::LinearOptions(6, 4).bias(bias));
    linear->eval();
    const auto layer = WeightOnlyInt8LinearImpl::from(*linear);
    const auto [codes, scales, unused] =
        dynamically_quantize_per_channel(linear->weight.detach(), -128, 127, at::kChar);
    EXPECT_TRUE(layer->named_buffers()["weight"].equal(codes));
    EXPECT_TRUE(layer->named_buffers()["scales"].equal(scales));
    EXPECT_EQ(layer->named_parameters(/*recurse=*/false).contains("bias"), bias);
    EXPECT_FALSE(layer->is_training());
    const at::Tensor x = at::randn({3, 6});
    EXPECT_TRUE(layer->forward(x).equal(
        weight_only_int8_linear(x, codes, scales, bias ? std::optional(linear->bias) : std::nullopt)));
  }
}

TEST(WeightOnlyInt8Linear, ClonesAndPrints) {
  const auto layer = WeightOnlyInt8LinearImpl::from(*torch::nn::Linear(6, 4));
  const auto copy = std::dynamic_pointer_cast<WeightOnlyInt8LinearImpl>(layer->clone());
  const at::Tensor x = at::randn({3, 6});
  EXPECT_TRUE(copy->forward(x).equal(layer->forward(x)));
  EXPECT_NE(copy->weight.data_ptr(), layer->weight.data_ptr());
  std::ostringstream text;
  text << WeightOnlyInt8Linear(layer);
  EXPECT_EQ(text.str(), "narrowcast::models::WeightOnlyInt8Linear(in_features=6, out_features=4, bias=true)");
}

TEST(WeightOnlyInt8Linear, RefusesWhatIsNoLayer) {
  EXPECT_THROW(WeightOnlyInt8Linear(WeightOnlyInt8LinearOptions{.in_features = -1}), c10::ValueError);
  EXPECT_THROW(WeightOnlyInt8Linear(WeightOnlyInt8LinearOptions{.out_features = -1}), c10::ValueError);
  EXPECT_THROW(WeightOnlyInt8Linear(WeightOnlyInt8LinearOptions{.scales_dtype = at::kInt}), c10::TypeError);
}

// The module's parameters and buffers by name.
StateDict state_of(const torch::nn::Module& module) {
  StateDict state;
  for (const auto& items : {module.named_parameters(), module.named_buffers()}) {
    for (const auto& item : items) state.emplace(item.key(), item.value().detach());
  }
  return state;
}

constexpr MlpOptions kTinyMlp = {.inputs = 6, .hidden = 5, .layers = 1, .classes = 3};
constexpr CharGptOptions kTinyGpt = {.layers = 1, .heads = 2, .width = 16, .context = 8, .vocabulary_size = 11};

TEST(WeightOnlyInt8StateDict, HasTheReferencesEntries) {
  const auto model = std::make_shared<Mlp>(kTinyMlp);
  model->to(at::kBFloat16);
  const StateDict before = state_of(*model);
  const StateDict state = WeightOnlyInt8QuantHandler(model).create_quantized_state_dict();
  EXPECT_EQ(keys_of(state), (std::set<std::string>{"layers.0.weight", "layers.0.scales", "layers.0.bias",
                                                   "layers.1.weight", "layers.1.scales", "layers.1.bias"}));
  for (const std::string layer : {"layers.0", "layers.1"}) {
    const auto [codes, scales, unused] =
        dynamically_quantize_per_channel(before.at(layer + ".weight").to(at::kFloat), -128, 127, at::kChar);
    EXPECT_TRUE(state.at(layer + ".weight").equal(codes));
    EXPECT_EQ(state.at(layer + ".scales").scalar_type(), at::kBFloat16);
    EXPECT_TRUE(state.at(layer + ".scales").equal(scales.to(at::kBFloat16)));
    EXPECT_TRUE(state.at(layer + ".bias").equal(before.at(layer + ".bias")));
    EXPECT_FALSE(state.at(layer + ".bias").requires_grad());
  }
  expect_equal(state_of(*model), before);
}

TEST(WeightOnlyInt8StateDict, LeavesWhatIsNoLinearAsItIs) {
  const auto model = std::make_shared<CharGpt>(kTinyGpt);
  const StateDict before = state_of(*model);
  const StateDict state = WeightOnlyInt8QuantHandler(model).create_quantized_state_dict();
  EXPECT_EQ(state.size(), before.size() + 4);  // scales of the four layers of one block
  for (const std::string name : {"token_embedding.weight", "final_norm.bias", "blocks.0.mlp_norm.weight"}) {
    EXPECT_TRUE(state.at(name).equal(before.at(name))) << name;
  }
  EXPECT_EQ(state.at("blocks.0.mlp_input.weight").scalar_type(), at::kChar);
}

TEST(WeightOnlyInt8Conversion, GivesTheBundledModelsTheStateDict) {
  const std::vector<std::shared_ptr<torch::nn::Module>> models{std::make_shared<Mlp>(kTinyMlp),
                                                               std::make_shared<CharGpt>(kTinyGpt)};
  for (const auto& model : models) {
    WeightOnlyInt8QuantHandler handler(model);
    const StateDict expected = handler.create_quantized_state_dict();
    EXPECT_EQ(handler.convert_for_runtime(), model);
    expect_equal(state_of(*model), expected);
    expect_equal(handler.create_quantized_state_dict(), expected);
  }
}

// With a single layer, the output's error follows from the weights' errors, which are at most half a scale. Their sum
// weighted by |x| is the bound; the float32 sums of both sides add 2 * (6 + 3) * 2^-24 of the terms.
TEST(WeightOnlyInt8Conversion, ChangesTheOutputByAtMostTheRoundingOfTheWeights) {
  const auto model = std::make_shared<Mlp>(MlpOptions{.inputs = 6, .layers = 0, .classes = 3});
  const at::Tensor x = at::rand({40, 6});
  const at::Tensor before = model->logits(x).detach();
  const at::Tensor weight = model->named_parameters()["layers.0.weight"].detach().abs();
  WeightOnlyInt8QuantHandler(model).convert_for_runtime();
  const at::Tensor scales = model->named_buffers()["layers.0.scales"];
  const at::Tensor bound = x.sum(1, true) * scales / 2 + (at::linear(x, weight) + 1) * (18 * 0x1p-24) + 1e-7;
  const at::Tensor change = (model->logits(x) - before).abs();
  EXPECT_TRUE(change.le(bound).all().item<bool>());
  EXPECT_GT(change.max().item<float>(), 0);
}

TEST(WeightOnlyInt8Conversion, ConvertedModelsStillGenerate) {
  const auto model = std::make_shared<CharGpt>(kTinyGpt);
  const at::Tensor tokens = at::randint(11, {2, 8}, at::kLong);
  const at::Tensor before = model->logits(tokens).detach();
  WeightOnlyInt8QuantHandler(model).convert_for_runtime();
  const at::Tensor after = model->logits(tokens);
  EXPECT_FALSE(after.equal(before));
  EXPECT_LT((after - before).norm().item<float>(), 0.1 * before.norm().item<float>());
}

// A Sequential that can be nested.
struct Inner : torch::nn::SequentialImpl {
  using SequentialImpl::SequentialImpl;
  at::Tensor forward(const at::Tensor& x) { return SequentialImpl::forward(x); }
};

TEST(WeightOnlyInt8Conversion, ReplacesLayersOfNestedSequentials) {
  const torch::nn::Linear shared(4, 4);
  const auto inner = std::make_shared<Inner>(torch::nn::ReLU(), shared);
  Sequential net(torch::nn::Linear(6, 4), inner, shared, Linear(4, 2));
  const at::Tensor x = at::randn({3, 6});
  WeightOnlyInt8QuantHandler handler(net.ptr());
  const StateDict expected = handler.create_quantized_state_dict();
  handler.convert_for_runtime();
  expect_equal(state_of(*net), expected);
  const auto layer = [&](const std::string& name, const at::Tensor& input) {
    return weight_only_int8_linear(input, expected.at(name + ".weight"), expected.at(name + ".scales"),
                                   expected.at(name + ".bias"));
  };
  const at::Tensor hidden = layer("1.1", layer("0", x).relu());
  EXPECT_TRUE(net->forward(x).equal(layer("3", layer("2", hidden))));
  EXPECT_EQ(net->ptr(2), inner->ptr(1));
  EXPECT_NE(net->ptr(0)->as<WeightOnlyInt8Linear>(), nullptr);
}

// Modules that modify a Linear layer's result, such as scaled outputs or low-rank adapters, with either Linear.
template <class Base>
struct Doubled : Base {
  using Base::Base;
  at::Tensor forward(const at::Tensor& x) { return 2 * Base::forward(x); }
};

TEST(WeightOnlyInt8ConversionErrors, NameClassesDerivedFromLinearAndChangeNothing) {
  const auto derived = std::make_shared<Doubled<torch::nn::LinearImpl>>(2, 2);
  Sequential outer(torch::nn::Linear(2, 2), std::make_shared<Inner>(derived));
  const StateDict before = state_of(*outer);
  const at::Tensor x = at::randn({3, 2});
  const at::Tensor output = outer->forward(x);
  WeightOnlyInt8QuantHandler handler(outer.ptr());
  for (const std::string& message : {error_message<c10::ValueError>([&] { handler.convert_for_runtime(); }),
                                     error_message<c10::ValueError>([&] { handler.create_quantized_state_dict(); })}) {
    EXPECT_EQ(message.find("submodule '1.0' is a "), 0) << message;
    EXPECT_NE(message.find("Doubled"), std::string::npos) << message;
    EXPECT_NE(message.find("derives from torch::nn::Linear"), std::string::npos) << message;
  }
  expect_equal(state_of(*outer), before);
  EXPECT_TRUE(outer->forward(x).equal(output));
  EXPECT_EQ(error_message<c10::ValueError>([&] {
              WeightOnlyInt8QuantHandler(derived).convert_for_runtime();
            }).find("the module is a "),
            0);
}

TEST(WeightOnlyInt8Conversion, KeepsWhatClassesDerivedFromOursAdd) {
  Sequential net(std::make_shared<Doubled<LinearImpl>>(6, 3));
  const at::Tensor x = at::randn({4, 6});
  WeightOnlyInt8QuantHandler handler(net.ptr());
  const StateDict state = handler.create_quantized_state_dict();
  handler.convert_for_runtime();
  expect_equal(state_of(*net), state);
  const at::Tensor product = weight_only_int8_linear(x, state.at("0.weight"), state.at("0.scales"), state.at("0.bias"));
  EXPECT_TRUE(net->forward(x).equal(2 * product));
}

struct Net : torch::nn::Module {
  Net() {
    body = register_module("body", Sequential(Linear(2, 2)));
    head = register_module("head", torch::nn::Linear(2, 2));
  }
  at::Tensor forward(const at::Tensor& x) { return head(body->forward(x)); }
  Sequential body{nullptr};
  torch::nn::Linear head{nullptr};
};

TEST(WeightOnlyInt8ConversionErrors, NameTheSubmoduleAndChangeNothing) {
  const auto net = std::make_shared<Net>();
  const Sequential outer(torch::nn::Linear(2, 2), net);
  const StateDict before = state_of(*outer);
  const std::string message =
      error_message<c10::ValueError>([&] { WeightOnlyInt8QuantHandler(outer.ptr()).convert_for_runtime(); });
  EXPECT_EQ(message.find("submodule '1.head' is a torch::nn::Linear in a "), 0) << message;
  expect_equal(state_of(*outer), before);
}

TEST(WeightOnlyInt8ConversionErrors, CoverListsRootsAndNothing) {
  const torch::nn::ModuleList list(torch::nn::Linear(2, 2));
  const std::string message =
      error_message<c10::ValueError>([&] { WeightOnlyInt8QuantHandler(list.ptr()).convert_for_runtime(); });
  EXPECT_EQ(message.find("submodule '0' is a torch::nn::Linear in a torch::nn::ModuleListImpl"), 0) << message;
  const torch::nn::Linear root(2, 2);
  EXPECT_EQ(error_message<c10::ValueError>([&] {
              WeightOnlyInt8QuantHandler(root.ptr()).convert_for_runtime();
            }).find("the module is itself a torch::nn::Linear"),
            0);
  EXPECT_EQ(error_message<c10::ValueError>([] { WeightOnlyInt8QuantHandler(nullptr); }), "module is null");
}

}  // namespace

}  // namespace narrowcast::models
