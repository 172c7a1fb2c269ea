// The initial state of a training, from files of every kind.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include <narrowcast/errors.h>
#include <narrowcast/gpt.h>
#include <narrowcast/models.h>
#include "models/imported/script_model.h"
#include "models/quantization/weight_only_int8.h"
#include "tests/support/error_message.h"
#include "tests/support/gpt2_weights.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/trained_modules.h"
#include "trainer/train/files/model_file.h"
#include "trainer/train/files/safetensors.h"

namespace narrowcast::files {
namespace {

using testing::error_message;
using testing::gpt2_weights;
using testing::TemporaryFolder;

const models::ModelOptions kSmallGpt2 = {
    {"layers", 2}, {"heads", 4}, {"width", 16}, {"context", 8}, {"vocabulary_size", 11}};

class InitialStateTest : public ::testing::Test {
 protected:
  // Saves a new model of that name and returns it.
  std::shared_ptr<models::Model> save(const std::string& name, const models::ModelOptions& options) {
    const auto model = models::create_model(name, options);
    save_model(path, {.name = name, .model = model, .vocabulary = {}});
    return model;
  }

  // A new model with the file's state and options; `given` overrides options.
  std::shared_ptr<models::Model> load(const std::string& name, const models::ModelOptions& given = {}) {
    const InitialState initial = read_initial_state(path, name);
    auto model = models::create_model(name, options_with(initial, given));
    load_initial_state(initial, *model);
    return model;
  }

  void write(const models::StateDict& tensors) const { write_safetensors(path, {.tensors = tensors, .metadata = {}}); }

  // The error of loading the file as a gpt, without its path.
  std::string corruption() {
    const std::string message = error_message<CorruptInputError>([&] { load("gpt", {{"heads", 4}}); });
    return message.starts_with(path + ": ") ? message.substr(path.size() + 2) : message;
  }

  // Applies `change` to good tensors of GPT-2.
  template <class Change>
  std::string corruption_after(const Change& change) {
    models::StateDict tensors = gpt2_weights();
    change(tensors);
    write(tensors);
    return corruption();
  }

  std::string wrong_use(const std::string& model, const models::ModelOptions& given = {}) {
    return error_message<c10::ValueError>([&] { load(model, given); });
  }

  const TemporaryFolder folder;
  const std::string path = folder / "m.safetensors";
};

void expect_equal_parameters(const models::Model& model, const models::Model& expected) {
  ASSERT_EQ(model.named_parameters().keys(), expected.named_parameters().keys());
  for (const auto& parameter : model.named_parameters()) {
    EXPECT_TRUE(parameter.value().equal(expected.named_parameters()[parameter.key()])) << parameter.key();
    EXPECT_TRUE(parameter.value().requires_grad()) << parameter.key();
  }
}

TEST_F(InitialStateTest, Gpt2HasTheShapesOfTheFile) {
  write(gpt2_weights({.layers = 1, .width = 128, .context = 5, .vocabulary = 7}));
  const models::ModelOptions expected = {
      {"layers", 1}, {"heads", 2}, {"width", 128}, {"context", 5}, {"vocabulary_size", 7}};
  EXPECT_EQ(load("gpt")->options(), expected);
}

TEST_F(InitialStateTest, Gpt2HasTheTensorsOfTheFile) {
  const models::StateDict tensors = gpt2_weights();
  write(tensors);
  const auto model = load("gpt", {{"heads", 4}, {"layers", 2}});
  const auto weights = model->named_parameters();
  EXPECT_TRUE(weights["token_embedding.weight"].equal(tensors.at("wte.weight")));
  EXPECT_TRUE(weights["blocks.1.mlp_output.weight"].equal(tensors.at("h.1.mlp.c_proj.weight").t()));
  EXPECT_TRUE(weights["blocks.0.query_key_value.bias"].equal(tensors.at("h.0.attn.c_attn.bias")));
  save_model(path, {.name = "gpt", .model = model, .vocabulary = {}});
  const models::StateDict written = read_safetensors(path).tensors;
  ASSERT_EQ(written.size(), tensors.size());
  for (const auto& [name, tensor] : tensors) EXPECT_TRUE(written.at(name).equal(tensor)) << name;
}

// Shards as transformers' save_pretrained(max_shard_size=...) writes them; `path` is the index, or its folder.
TEST_F(InitialStateTest, Gpt2MayBeInSeveralFiles) {
  const models::StateDict tensors = gpt2_weights();
  std::map<std::string, models::StateDict> parts;
  nlohmann::json weight_map;
  for (const auto& [name, tensor] : tensors) {
    const std::string part = c10::str("model-0000", name < "h.1" ? 1 : 2, "-of-00002.safetensors");
    parts[part].emplace(name, tensor);
    weight_map[name] = part;
  }
  for (const auto& [part, content] : parts) {
    write_safetensors(folder / part, {.tensors = content, .metadata = {{"format", "pt"}}});
  }
  const std::string index =
      folder.write("model.safetensors.index.json", nlohmann::json{{"weight_map", weight_map}}.dump());
  for (const std::string& given : {index, folder.path().string()}) {
    const InitialState initial = read_initial_state(given, "gpt");
    EXPECT_EQ(initial.files.size(), 3U);
    const auto model = models::create_model("gpt", options_with(initial, {{"heads", 4}}));
    EXPECT_TRUE(load_initial_state(initial, *model).empty());
    const auto weights = model->named_parameters();
    EXPECT_TRUE(weights["token_embedding.weight"].equal(tensors.at("wte.weight")));
    EXPECT_TRUE(weights["blocks.0.mlp_output.weight"].equal(tensors.at("h.0.mlp.c_proj.weight").t()));
  }
}

TEST_F(InitialStateTest, NarrowFloatsAreWidened) {
  for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16}) {
    models::StateDict tensors = gpt2_weights();
    for (auto& [name, tensor] : tensors) tensor = tensor.to(dtype);
    write(tensors);
    const at::Tensor bias = load("gpt", {{"heads", 4}})->named_parameters()["final_norm.bias"];
    EXPECT_EQ(bias.scalar_type(), at::kFloat);
    EXPECT_TRUE(bias.equal(tensors.at("ln_f.bias").to(at::kFloat)));
  }
}

// The number of heads is in the metadata, because no shape shows it.
TEST_F(InitialStateTest, WhatATrainingWroteComesBack) {
  for (const std::string name : {"gpt", "char_gpt"}) {
    const auto model = save(name, kSmallGpt2);
    const auto loaded = load(name);
    EXPECT_EQ(loaded->options(), kSmallGpt2) << name;
    expect_equal_parameters(*loaded, *model);
  }
  const auto mlp = save("mlp", {{"inputs", 6}, {"hidden", 5}, {"classes", 3}});
  expect_equal_parameters(*load("mlp", {{"hidden", 5}}), *mlp);
}

TEST_F(InitialStateTest, CharGptBecomesGpt) {
  const auto model = save("char_gpt", kSmallGpt2);
  expect_equal_parameters(*load("gpt"), *model);
}

TEST_F(InitialStateTest, TheVocabularyIsTheFiles) {
  const auto model = models::create_model("gpt", kSmallGpt2);
  save_model(path, {.name = "gpt", .model = model, .vocabulary = {"b", "a"}});
  EXPECT_EQ(read_initial_state(path, "gpt").vocabulary, std::vector<std::string>({"b", "a"}));
}

TEST_F(InitialStateTest, AFlagThatContradictsTheFileIsNamedWithBothValues) {
  write(gpt2_weights());
  EXPECT_EQ(wrong_use("gpt", {{"width", 32}}), "width: is 32, but 16 in " + path + ", the file of init_from");
  EXPECT_EQ(wrong_use("gpt", {{"vocabulary_size", 12}}),
            "vocabulary_size: is 12, but 11 in " + path + ", the file of init_from");
  EXPECT_EQ(wrong_use("gpt"), "gpt: option heads must be given if width is not a multiple of 64, but width is 16");
}

TEST_F(InitialStateTest, AShorterContextHasTheFirstPositions) {
  write(gpt2_weights());
  const auto model = load("gpt", {{"heads", 4}, {"context", 3}});
  EXPECT_EQ(model->options().at("context"), 3);
  const at::Tensor positions = model->named_parameters()["position_embedding.weight"];
  EXPECT_TRUE(positions.equal(gpt2_weights().at("wpe.weight").slice(0, 0, 3)));
  EXPECT_EQ(wrong_use("gpt", {{"heads", 4}, {"context", 9}}),
            "context: is 9, but 8 in " + path + ", the file of init_from");
  save("char_gpt", kSmallGpt2);
  EXPECT_EQ(wrong_use("char_gpt", {{"context", 3}}), "context: is 3, but 8 in " + path + ", the file of init_from");
}

TEST_F(InitialStateTest, WrongTensorsAreNamed) {
  EXPECT_EQ(corruption_after([](models::StateDict& tensors) { tensors.erase("h.0.mlp.c_fc.bias"); }),
            "the model's tensor 'h.0.mlp.c_fc.bias' is missing");
  EXPECT_EQ(corruption_after([](models::StateDict& tensors) { tensors["h.0.extra"] = at::ones({1}); }),
            "tensor 'h.0.extra' does not belong to the model");
  EXPECT_EQ(corruption_after([](models::StateDict& tensors) { tensors["h.5.ln_1.bias"] = at::ones({16}); }),
            "tensor 'h.5.ln_1.bias' does not belong to the model");
  // In the layout of torch.nn.Linear.
  EXPECT_EQ(corruption_after([](models::StateDict& tensors) {
              tensors["h.0.attn.c_attn.weight"] = at::ones({48, 16});
            }),
            "tensor 'h.0.attn.c_attn.weight' has the shape [48, 16], but the model's has [16, 48]");
  EXPECT_EQ(corruption_after([](models::StateDict& tensors) { tensors["ln_f.bias"] = at::ones({16}, at::kDouble); }),
            "tensor 'ln_f.bias' has the dtype Double, but the model's has Float");
}

TEST_F(InitialStateTest, NothingChangesIfATensorIsWrong) {
  models::StateDict tensors = gpt2_weights();
  tensors.erase("wpe.weight");
  tensors["wpe.weight"] = at::ones({8, 17});
  write(tensors);
  const auto model = models::create_model("gpt", kSmallGpt2);
  const at::Tensor before = model->named_parameters()["token_embedding.weight"].clone();
  EXPECT_THROW(load_initial_state(read_initial_state(path, "gpt"), *model), CorruptInputError);
  EXPECT_TRUE(model->named_parameters()["token_embedding.weight"].equal(before));
}

TEST_F(InitialStateTest, FilesOfSomethingElseAreNamed) {
  save("mlp", {});
  EXPECT_EQ(wrong_use("gpt"), "init_from: " + path + " holds the model mlp, not gpt");
  save("gpt", kSmallGpt2);
  EXPECT_EQ(wrong_use("char_gpt"), "init_from: " + path + " holds the model gpt, not char_gpt");
  EXPECT_THAT(error_message<c10::ValueError>([] { read_initial_state("m.pt", "gpt"); }),
              ::testing::HasSubstr("init_from: m.pt must be a file of weights (*.safetensors"));
  EXPECT_THROW(read_initial_state(folder / "none.safetensors", "gpt"), c10::ValueError);
  models::WeightOnlyInt8QuantHandler handler(models::create_model("char_gpt", kSmallGpt2));
  save_model(path, {.name = "char_gpt",
                    .model = std::dynamic_pointer_cast<models::Model>(handler.convert_for_runtime()),
                    .vocabulary = {},
                    .quantization = kWeightOnlyInt8});
  EXPECT_EQ(wrong_use("gpt"), "init_from: " + path + " is quantised: its weights cannot be trained");
}

// A module with one weight under three names, like a language model's embedding and head.
models::ScriptModel tied_module() {
  const auto unit = std::make_shared<torch::jit::CompilationUnit>();
  torch::jit::Module part = testing::trained_module(unit, "Part");
  part.register_parameter("weight", at::rand({2}).requires_grad_(), /*is_buffer=*/false);
  torch::jit::Module tied = testing::trained_module(unit, "Tied");
  tied.register_parameter("weight", part.attr("weight").toTensor(), /*is_buffer=*/false);
  torch::jit::Module module = testing::trained_module(unit, "Module");
  module.register_module("a", part);
  module.register_module("b", tied);
  module.register_module("c", part);
  module.define("def forward(self, x: Tensor) -> Tensor:\n    return x * self.a.weight * self.b.weight\n");
  return {module, {.name = "m.pt", .loss = models::Loss::kMse}};
}

// Python's load_state_dict must find all names. Files of Python's state_dict and of safetensors' save_model can be
// read.
TEST_F(InitialStateTest, ATiedTensorHasAllItsNames) {
  const auto saved = std::make_shared<models::ScriptModel>(tied_module());
  save_model(path, {.name = models::kScript, .model = saved, .vocabulary = {}});
  const at::Tensor weight = saved->parameters()[0].detach();
  const models::StateDict tensors = read_safetensors(path).tensors;
  ASSERT_EQ(tensors.size(), 3U);
  for (const auto& [name, tensor] : tensors) {
    EXPECT_TRUE(tensor.equal(weight)) << name;
  }
  const auto loaded = [&] {
    models::ScriptModel model = tied_module();
    load_initial_state(read_initial_state(path, "m.pt"), model);
    return model.parameters()[0].detach();
  };
  EXPECT_TRUE(loaded().equal(weight));
  for (const char* const name : {"a.weight", "b.weight"}) {
    write({{name, weight + 1}});
    EXPECT_TRUE(loaded().equal(weight + 1)) << name;
  }
  write({{"a.weight", weight}, {"b.weight", weight + 1}});
  EXPECT_EQ(error_message<CorruptInputError>(loaded),
            path + ": tensors 'a.weight' and 'b.weight' differ, but the model has one tensor for both");
  write({{"a.weight", weight}, {"d.weight", weight}});
  EXPECT_EQ(error_message<CorruptInputError>(loaded), path + ": tensor 'd.weight' does not belong to the model");
}

// A module with a weight and two buffers, which TorchScript saves even if they are not persistent.
models::ScriptModel buffered_module() {
  torch::jit::Module module = testing::trained_module(std::make_shared<torch::jit::CompilationUnit>(), "Buffered");
  module.register_parameter("weight", at::rand({2}).requires_grad_(), /*is_buffer=*/false);
  module.register_buffer("angles", at::full({2}, 7.0));
  module.register_buffer("mean", at::full({2}, 8.0));
  module.define("def forward(self, x: Tensor) -> Tensor:\n    return x * self.weight * self.angles - self.mean\n");
  return {module, {.name = "m.pt", .loss = models::Loss::kMse}};
}

TEST_F(InitialStateTest, BuffersThatAFileOfPythonLacksKeepTheirValues) {
  models::ScriptModel model = buffered_module();
  write({{"weight", at::full({2}, 3.0)}, {"mean", at::full({2}, 4.0)}});
  EXPECT_EQ(load_initial_state(read_initial_state(path, "m.pt"), model), std::vector<std::string>{"angles"});
  EXPECT_TRUE(model.named_parameters()["weight"].equal(at::full({2}, 3.0)));
  EXPECT_TRUE(model.named_buffers()["mean"].equal(at::full({2}, 4.0)));
  EXPECT_TRUE(model.named_buffers()["angles"].equal(at::full({2}, 7.0)));
  write({{"weight", at::ones({2})}, {"mean", at::ones({2})}, {"angles", at::ones({2})}});
  EXPECT_EQ(load_initial_state(read_initial_state(path, "m.pt"), model), std::vector<std::string>{});
  EXPECT_TRUE(model.named_buffers()["angles"].equal(at::ones({2})));
}

TEST_F(InitialStateTest, AParameterMustBeThereAndABufferOfATrainingToo) {
  const auto message = [&] {
    models::ScriptModel model = buffered_module();
    return error_message<CorruptInputError>([&] { load_initial_state(read_initial_state(path, "m.pt"), model); });
  };
  write({{"mean", at::ones({2})}});
  EXPECT_EQ(message(), path + ": the model's tensor 'weight' is missing");
  write({{"weight", at::ones({2})}, {"mean", at::ones({3})}});
  EXPECT_EQ(message(), path + ": tensor 'mean' has the shape [3], but the model's has [2]");
  const auto saved = std::make_shared<models::ScriptModel>(buffered_module());
  save_model(path, {.name = models::kScript, .model = saved, .vocabulary = {}});
  Safetensors content = read_safetensors(path);
  content.tensors.erase("angles");
  write_safetensors(path, content);
  EXPECT_EQ(message(), path + ": the model's tensor 'angles' is missing");
}

// The model would need 3 TiB of memory.
TEST_F(InitialStateTest, AModelOutOfProportionIsNotMade) {
  write({{"wte.weight", at::ones({1, 16384})}, {"wpe.weight", at::ones({1, 16384})}});
  const InitialState initial = read_initial_state(path, "gpt");
  const models::ModelOptions options = options_with(initial, {});
  models::ModelOptions many = options;
  many["layers"] = 256;
  EXPECT_EQ(error_message<CorruptInputError>([&] { check_size(initial, "gpt", many); }).substr(path.size()),
            ": holds 32768 numbers, but a gpt with its options has 824688312320 parameters");
  write(gpt2_weights());
  EXPECT_NO_THROW(check_size(read_initial_state(path, "gpt"), "gpt", kSmallGpt2));
}

}  // namespace
}  // namespace narrowcast::files
