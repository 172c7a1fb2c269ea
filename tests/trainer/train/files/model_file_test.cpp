#include "trainer/train/files/model_file.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>

#include <filesystem>

#include <narrowcast/char_gpt.h>
#include <narrowcast/errors.h>
#include <narrowcast/models.h>
#include "models/imported/script_state.h"
#include "models/quantization/weight_only_int8.h"
#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"
#include "tests/trainer/train/files/script_fixtures.h"
#include "trainer/base/files/safetensors_header.h"
#include "trainer/train/files/safetensors.h"

namespace narrowcast::files {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::error_message;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::table_module;
using testing::TemporaryFolder;

const models::ModelOptions kTinyGpt = {
    {"layers", 1}, {"heads", 2}, {"width", 8}, {"context", 6}, {"vocabulary_size", 3}};

SavedModel tiny_gpt() {
  return {
      .name = "char_gpt", .model = models::create_model("char_gpt", kTinyGpt), .vocabulary = {"a", "\n", "\xc3\xa9"}};
}

class ModelFile : public ::testing::Test {
 protected:
  // Saves, lets `change` alter the file's content, and returns the error of loading it, without the path.
  template <class Change>
  std::string error_after(const Change& change) {
    save_model(path_, tiny_gpt());
    Safetensors content = read_safetensors(path_);
    change(content);
    write_safetensors(path_, content);
    const std::string message = error_message<CorruptInputError>([&] { load_model(path_); });
    return message.starts_with(path_ + ": ") ? message.substr(path_.size() + 2) : message;
  }

  TemporaryFolder folder_;
  std::string path_ = folder_ / "model.safetensors";
};

TEST_F(ModelFile, EveryModelComesBack) {
  for (const std::string& name : models::model_names()) {
    const bool is_gpt2 = models::model_row(name).is_gpt2;  // It is not small by default.
    const SavedModel saved = {.name = name,
                              .model = models::create_model(name, is_gpt2 ? kTinyGpt : models::ModelOptions()),
                              .vocabulary = {}};
    save_model(path_, saved);
    const SavedModel loaded = load_model(path_);
    EXPECT_EQ(loaded.name, name);
    EXPECT_EQ(loaded.model->options(), saved.model->options());
    const auto expected = saved.model->named_parameters();
    for (const auto& parameter : loaded.model->named_parameters()) {
      EXPECT_TRUE(parameter->equal(expected[parameter.key()])) << name << " " << parameter.key();
      EXPECT_TRUE(parameter->requires_grad()) << name << " " << parameter.key();
    }
  }
}

// The models list the dtypes that files can hold, without depending on the files.
TEST(SavedDtypes, AreThoseOfSafetensors) {
  for (int type = 0; type < static_cast<int>(c10::ScalarType::NumOptions); ++type) {
    const auto dtype = static_cast<c10::ScalarType>(type);
    EXPECT_EQ(models::can_be_saved(dtype), dtype_name(dtype).has_value()) << dtype;
  }
}

TEST_F(ModelFile, ModelAndVocabularyAreUsableFromTheFileAlone) {
  const SavedModel saved = tiny_gpt();
  save_model(path_, saved);
  const SavedModel loaded = load_model(path_);
  EXPECT_EQ(loaded.vocabulary, saved.vocabulary);
  const auto sample = [](const SavedModel& model) {
    return std::dynamic_pointer_cast<models::CharGpt>(model.model)
        ->generate(at::zeros({1}, at::kLong), {.count = 20}, at::detail::createCPUGenerator(1));
  };
  EXPECT_TRUE(sample(loaded).equal(sample(saved)));
}

TEST_F(ModelFile, MetadataIsAsDocumented) {
  save_model(path_, tiny_gpt());
  const std::map<std::string, std::string> expected = {
      {"format_version", "1"},
      {"model", "char_gpt"},
      {"options", R"({"context":6,"heads":2,"layers":1,"vocabulary_size":3,"width":8})"},
      {"vocabulary", "[\"a\",\"\\n\",\"\xc3\xa9\"]"},
      {"linear_layers",
       R"(["blocks.0.query_key_value","blocks.0.attention_output","blocks.0.mlp_input","blocks.0.mlp_output"])"}};
  EXPECT_EQ(read_safetensors(path_).metadata, expected);
}

// transformers does not read files without "format".
TEST_F(ModelFile, Gpt2IsAsHuggingFaceHasIt) {
  const auto model = models::create_model("gpt", kTinyGpt);
  save_model(path_, {.name = "gpt", .model = model, .vocabulary = {"a", "b", "c"}});
  const Safetensors content = read_safetensors(path_);
  EXPECT_EQ(content.metadata.at("format"), "pt");
  EXPECT_EQ(content.metadata.at("model"), "gpt");
  EXPECT_EQ(content.metadata.at("linear_layers"),
            R"(["h.0.attn.c_attn","h.0.attn.c_proj","h.0.mlp.c_fc","h.0.mlp.c_proj"])");
  const at::Tensor weight = model->named_parameters()["blocks.0.query_key_value.weight"];
  EXPECT_TRUE(content.tensors.at("h.0.attn.c_attn.weight").equal(weight.t()));
}

TEST_F(ModelFile, QuantisedGpt2KeepsItsOwnNames) {
  const auto model = models::create_model("gpt", kTinyGpt);
  models::WeightOnlyInt8QuantHandler(model).convert_for_runtime();
  save_model(path_, {.name = "gpt", .model = model, .vocabulary = {}, .quantization = kWeightOnlyInt8});
  EXPECT_FALSE(read_safetensors(path_).metadata.contains("format"));
  const auto loaded = std::dynamic_pointer_cast<models::Gpt>(load_model(path_).model);
  const at::Tensor tokens = at::zeros({1, 4}, at::kLong);
  EXPECT_TRUE(loaded->logits(tokens).equal(std::dynamic_pointer_cast<models::Gpt>(model)->logits(tokens)));
}

// The case of padded vocabularies.
TEST_F(ModelFile, Gpt2MayHaveMoreTokensThanItsVocabularyHasEntries) {
  const auto model = models::create_model("gpt", kTinyGpt);
  save_model(path_, {.name = "gpt", .model = model, .vocabulary = {"a", "b"}});
  EXPECT_THAT(load_model(path_).vocabulary, ElementsAre("a", "b"));
  EXPECT_THROW(save_model(path_, {.name = "gpt", .model = model, .vocabulary = {"a", "b", "c", "d"}}), c10::ValueError);
}

TEST_F(ModelFile, HoldsEveryParameterOnceUnderItsName) {
  const SavedModel saved = tiny_gpt();
  save_model(path_, saved);
  std::vector<std::string> names;
  for (const auto& [name, tensor] : read_safetensors(path_).tensors) {
    names.push_back(name);
  }
  std::vector<std::string> expected = saved.model->named_parameters().keys();
  std::sort(expected.begin(), expected.end());
  EXPECT_EQ(names, expected);
}

// Has a buffer, and one Linear layer registered under two names.
class TiedModel : public models::Model {
 public:
  TiedModel() {
    const torch::nn::Linear shared(2, 2);
    register_module("first", shared);
    register_module("second", shared);
    register_module("norm", torch::nn::BatchNorm1d(2));
  }
  at::Tensor forward(const models::Batch& batch) override { return batch.inputs; }
  models::ModelOptions options() const override { return {}; }
};

TEST_F(ModelFile, TiedWeightsAreHeldOnceAndBuffersToo) {
  save_model(path_, {.name = "tied", .model = std::make_shared<TiedModel>(), .vocabulary = {}});
  const auto tensors = read_safetensors(path_).tensors;
  EXPECT_TRUE(tensors.contains("first.weight") && tensors.contains("first.bias"));
  EXPECT_FALSE(tensors.contains("second.weight") || tensors.contains("second.bias"));
  EXPECT_TRUE(tensors.contains("norm.running_mean"));
}

TEST_F(ModelFile, OtherSafetensorsFilesAreNoModels) {
  write_safetensors(path_, {.tensors = {{"x", at::ones({1})}}, .metadata = {}});
  EXPECT_EQ(error_message<CorruptInputError>([&] { load_model(path_); }),
            path_ + ": is not a model of narrowcast: its metadata lacks 'format_version'");
}

TEST_F(ModelFile, UnknownVersionsAreRefused) {
  EXPECT_EQ(error_after([](Safetensors& content) { content.metadata["format_version"] = "2"; }),
            "has the format version '2', but this program reads version 1");
}

TEST_F(ModelFile, WrongMetadataIsNamed) {
  const auto error_with = [&](const std::string& key, const std::string& value) {
    return error_after([&](Safetensors& content) { content.metadata[key] = value; });
  };
  EXPECT_EQ(error_with("model", "gpt5"), "model: unknown name 'gpt5'; known: char_gpt, ddp_comm_hook_task, gpt, mlp");
  EXPECT_EQ(error_with("options", "{"), "metadata 'options': is not valid JSON at byte 2");
  EXPECT_EQ(error_with("options", R"({"layers":0})"), "char_gpt: option layers must be in 1..256, but is 0");
  EXPECT_EQ(error_with("options", R"({"layers":2.5})"), "char_gpt: option layers must be an integer, but is 2.5");
  EXPECT_EQ(error_with("options", R"({"layers":"8"})"), "char_gpt: option layers must be an integer, but is \"8\"");
  EXPECT_EQ(error_with("options", R"({"layers":null})"), "char_gpt: option layers must be an integer, but is null");
  EXPECT_EQ(error_with("options", R"({"layers":18446744073709551615})"),
            "char_gpt: option layers must be an integer, but is 18446744073709551615");
  EXPECT_EQ(error_with("options", "[1]"), "char_gpt: options must be a JSON object, but are [1]");
  EXPECT_NE(error_with("options", R"({"width":16384,"layers":256,"heads":2,"vocabulary_size":3})").find("parameters"),
            std::string::npos);  // it would need 3 TiB of memory
  EXPECT_EQ(error_with("quantization", "int3"),
            "has the quantization 'int3', but this program reads weight_only_int8 only");
  EXPECT_EQ(error_with("quantization", "weight_only_int8"),
            "the model's tensor 'blocks.0.attention_output.scales' is missing");
  EXPECT_EQ(error_with("vocabulary", "{}"), "metadata 'vocabulary' is not an array");
  EXPECT_EQ(error_with("vocabulary", "[1]"), "metadata 'vocabulary' must hold only strings");
  EXPECT_NE(error_with("vocabulary", R"(["a"])").find("the vocabulary has 1 entries"), std::string::npos);
  EXPECT_EQ(error_after([](Safetensors& content) { content.metadata.erase("options"); }),
            "is not a model of narrowcast: its metadata lacks 'options'");
}

TEST_F(ModelFile, DeepJsonIsAnErrorNotTheEndOfTheStack) {
  for (const std::string key : {"options", "vocabulary"}) {
    for (const char* const opening : {"[", "{\"a\":"}) {
      std::string deep;
      for (int i = 0; i < 60'000; ++i) {
        deep += opening;
      }
      EXPECT_EQ(error_after([&](Safetensors& content) { content.metadata[key] = deep; }),
                "metadata '" + key + "': is JSON nested more than 64 deep");
    }
  }
}

TEST_F(ModelFile, WhatTheFileSaysIsShownOnOneLineAndNotEndless) {
  EXPECT_EQ(error_after([](Safetensors& content) { content.tensors["\x1b[2J\n"] = at::ones({1}); }),
            R"(tensor '\x1b[2J\n' does not belong to the model)");
  const std::string message = error_after([](Safetensors& content) {
    content.metadata["options"] = R"({"\u001b[2J)" + std::string(1'000'000, 'x') + R"(": 1})";
  });
  EXPECT_EQ(message.substr(0, 40), R"(char_gpt: unknown option '\x1b[2Jxxxxxxx)");
  EXPECT_LE(message.size(), 1000u);
}

TEST_F(ModelFile, WrongTensorsAreNamed) {
  EXPECT_EQ(error_after([](Safetensors& content) { content.tensors.erase("final_norm.bias"); }),
            "the model's tensor 'final_norm.bias' is missing");
  EXPECT_EQ(error_after([](Safetensors& content) { content.tensors["x"] = at::ones({1}); }),
            "tensor 'x' does not belong to the model");
  EXPECT_EQ(error_after([](Safetensors& content) { content.tensors["final_norm.bias"] = at::ones({7}); }),
            "tensor 'final_norm.bias' has the shape [7], but the model's has [8]");
  EXPECT_EQ(error_after([](Safetensors& content) { content.tensors["final_norm.bias"] = at::ones({8}, at::kHalf); }),
            "tensor 'final_norm.bias' has the dtype Half, but the model's has Float");
}

TEST_F(ModelFile, WrongUseIsNamed) {
  EXPECT_THROW(load_model("/nonexistent/model.safetensors"), c10::ValueError);
  EXPECT_THROW(save_model(path_, {}), c10::ValueError);
  SavedModel saved = tiny_gpt();
  saved.vocabulary = {"a"};
  EXPECT_THROW(save_model(path_, saved), c10::ValueError);
  saved.vocabulary = {"a", "b", "\xff"};
  EXPECT_THROW(save_model(path_, saved), c10::ValueError);
  EXPECT_EQ(folder_.entries(), 0);
}

TEST(ModelSuffix, IsOneOfThree) {
  EXPECT_EQ(model_suffix("input", "a.pt/m.safetensors"), kModelSuffix);
  EXPECT_EQ(model_suffix("input", "m.pt"), kScriptSuffix);
  EXPECT_EQ(model_suffix("input", "m.pt2"), kPackageSuffix);
  EXPECT_EQ(error_message<c10::ValueError>([] { model_suffix("input", "m.bin"); }),
            "input: m.bin must be named *.safetensors (a model file), *.pt (a TorchScript module) or *.pt2 (a model "
            "package)");
}

}  // namespace
}  // namespace narrowcast::files
