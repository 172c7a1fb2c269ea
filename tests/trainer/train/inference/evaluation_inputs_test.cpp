#include "trainer/train/inference/evaluation_job.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <narrowcast/errors.h>
#include <narrowcast/models.h>
#include "models/table/model_table.h"
#include "tests/support/digits.h"
#include "tests/support/error_message.h"
#include "tests/support/trained_modules.h"
#include "tests/trainer/train/files/script_fixtures.h"
#include "tests/trainer/train/job/small_job.h"
#include "trainer/train/files/model_file.h"

namespace narrowcast::inference {
namespace {

using ::testing::ElementsAre;
using testing::error_message;
using ::testing::HasSubstr;
using testing::save_script;
using testing::table_module;
using testing::TemporaryFolder;

TEST(LoadForEvaluation, AModelFileSaysAllItself) {
  const TemporaryFolder folder;
  const auto model = models::create_model(
      "char_gpt", {{"layers", 1}, {"heads", 1}, {"width", 4}, {"context", 8}, {"vocabulary_size", 2}});
  files::save_model(folder / "m.safetensors", {.name = "char_gpt", .model = model, .vocabulary = {"b", "a"}});
  const LoadedModel loaded = load_for_evaluation({.version = "1", .file = folder / "m.safetensors", .context = 3});
  EXPECT_EQ(loaded.name, "char_gpt");
  EXPECT_THAT(loaded.vocabulary, ElementsAre("b", "a"));
  EXPECT_EQ(loaded.next.value().context, 8);
  EXPECT_EQ(loaded.next->logits(at::zeros({5}, at::kLong)).sizes(), at::IntArrayRef({2}));
  EXPECT_EQ(loaded.state.size(), model->parameters().size());
}

TEST(LoadForEvaluation, AScriptIsWhatTheJobSays) {
  const TemporaryFolder folder;
  save_script(table_module(at::eye(3)), folder / "m.pt", {"a", "b", "c"});
  EvaluationJob job = {.version = "1", .file = folder / "m.pt", .context = 3};
  const LoadedModel loaded = load_for_evaluation(job);
  EXPECT_EQ(loaded.next.value().context, 3);
  EXPECT_TRUE(loaded.next->logits(at::ones({2}, at::kLong)).equal(at::eye(3)[1]));
  EXPECT_EQ(loaded.state.size(), 1U);
  job.as_model = "mlp";
  EXPECT_FALSE(load_for_evaluation(job).next.has_value());
}

// Without a model name the data decide what kind of model a script is. A script without logits cannot write text.
TEST(LoadForEvaluation, AScriptIsWhatItsDataAre) {
  const TemporaryFolder folder;
  testing::write_digits(folder);
  save_script(table_module(at::eye(3)), folder / "m.pt", {});
  EvaluationJob job = {.version = "1", .file = folder / "m.pt", .as_model = folder / "m.pt"};
  EXPECT_TRUE(load_for_evaluation(job).next.has_value());
  job.data = {folder.path().string()};
  EXPECT_FALSE(load_for_evaluation(job).next.has_value());
  job.data = {};
  job.loss = models::Loss::kMse;
  EXPECT_FALSE(load_for_evaluation(job).next.has_value());
  testing::digit_net(testing::kGivesLoss).save(folder / "m.pt");
  EXPECT_THAT(error_message<c10::ValueError>([&] { load_for_evaluation(job); }), HasSubstr("returns the loss itself"));
  job.loss = std::nullopt;
  EXPECT_FALSE(load_for_evaluation(job).next.has_value());
}

TEST(LoadForEvaluation, GoesByTheFilesSuffix) {
  const TemporaryFolder folder;
  const auto message = [&](const std::string& name) {
    return error_message<c10::ValueError>([&] { load_for_evaluation({.version = "1", .file = folder / name}); });
  };
  EXPECT_THAT(message("m.bin"), HasSubstr("must be named *.safetensors"));
  // A script whose name is that of a model file is not run.
  save_script(table_module(at::eye(3)), folder / "m.safetensors", {});
  EXPECT_THROW(load_for_evaluation({.version = "1", .file = folder / "m.safetensors"}), CorruptInputError);
  files::save_model(
      folder / "task.safetensors",
      {.name = "ddp_comm_hook_task", .model = models::create_model("ddp_comm_hook_task"), .vocabulary = {}});
  EXPECT_THAT(message("task.safetensors"), HasSubstr("cannot be evaluated"));
  files::save_model(folder / "script.safetensors",
                    {.name = models::kScript, .model = models::create_model("mlp"), .vocabulary = {}});
  EXPECT_THAT(message("script.safetensors"), HasSubstr("without its code; use the *.pt that was written beside it"));
}

TEST(ReadEvaluationData, TextIsInTheModelsTokens) {
  const TemporaryFolder folder;
  const EvaluationJob job = {.version = "1", .file = "", .data = {folder.write("verse.txt", testing::verse())}};
  std::vector<std::string> vocabulary;
  for (char character = 'z'; character >= '\n'; --character) {
    vocabulary.emplace_back(1, character);
  }
  const LoadedModel loaded = {.model = nullptr,
                              .name = "char_gpt",
                              .vocabulary = vocabulary,
                              .next = models::NextToken{.context = 8, .logits = {}},
                              .context = 8};
  const data::ReadData read = read_data(job, loaded);
  EXPECT_EQ(read.vocabulary, vocabulary);
  const at::Tensor first = read.dataset->training_batch({0}).inputs[0];
  EXPECT_EQ(vocabulary[static_cast<size_t>(first[0].item<int64_t>())], "l");
  EXPECT_EQ(vocabulary[static_cast<size_t>(first[3].item<int64_t>())], "e");
  EXPECT_GT(read.bigram_entropy.value(), 0);
}

TEST(ReadEvaluationData, ACharacterThatTheModelDoesNotKnowIsNamed) {
  const TemporaryFolder folder;
  const EvaluationJob job = {.version = "1", .file = "", .data = {folder.write("verse.txt", testing::verse())}};
  const LoadedModel loaded = {.model = nullptr,
                              .name = "char_gpt",
                              .vocabulary = {"\n", " "},
                              .next = models::NextToken{.context = 8, .logits = {}},
                              .context = 8};
  EXPECT_THAT(error_message<c10::ValueError>([&] { read_data(job, loaded); }),
              HasSubstr("verse.txt: the character '0' is not in the model's vocabulary of 2 characters"));
}

TEST(ReadEvaluationData, ImagesNeedAFolder) {
  const LoadedModel loaded = {.model = nullptr, .name = "mlp"};
  EXPECT_THAT(error_message<c10::ValueError>([&] { read_data({.version = "1", .file = ""}, loaded); }),
              HasSubstr("mlp needs one folder of IDX files"));
}

}  // namespace
}  // namespace narrowcast::inference
