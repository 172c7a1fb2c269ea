#include "trainer/train/inference/evaluation_job.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>
#include <set>
#include <sstream>

#include "tests/support/data_files.h"
#include "tests/support/error_message.h"
#include "tests/trainer/train/files/script_fixtures.h"
#include "tests/trainer/train/job/small_job.h"
#include "trainer/base/program/failure.h"
#include "trainer/train/job/train_job.h"

namespace narrowcast::inference {
namespace {

using testing::error_message;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;
using testing::save_script;
using testing::table_module;
using testing::TemporaryFolder;

struct Printed {
  int exit_code = -1;
  std::string results;
};

template <class Run>
Printed print_of(const Run& run) {
  std::ostringstream results;
  std::ostringstream progress;
  const job::JobContext context = {
      .env = {}, .session = {}, .results = results, .progress = progress, .progress_is_terminal = false};
  const int exit_code = run(context);
  return {exit_code, results.str()};
}

Printed evaluate(const EvaluationJob& job) {
  return print_of([&](const job::JobContext& context) { return run_evaluation_job(job, context); });
}

// The number after `name`.
double printed_value(const std::string& results, const std::string& name) {
  const size_t at = results.find(name);
  return at == std::string::npos ? NAN : std::stod(results.substr(at + name.size()));
}

// Evaluates the TorchScript module in `file`, which sees 4 characters.
EvaluationJob script_job(const std::string& file) {
  EvaluationJob job;
  job.version = "1";
  job.file = file;
  job.context = 4;
  return job;
}

// A training's model, evaluated on the same data.
class EvaluationJobTest : public ::testing::Test {
 protected:
  EvaluationJobTest() {
    job::TrainJob training = testing::small_job(folder);
    training.output.folder = folder / "run";
    trained = print_of([&](const job::JobContext& context) { return job::run_job(training, context); });
    job.version = "1";
    job.file = folder / "run/model.safetensors";
    job.data = training.data;
    job.batch_size = training.training.batch_size;
    job.batches = training.training.eval_batches;
    job.threads = 1;
  }

  const TemporaryFolder folder;
  Printed trained;
  EvaluationJob job;
};

TEST_F(EvaluationJobTest, GivesTheLossThatTheTrainingEndedWith) {
  const Printed evaluated = evaluate(job);
  EXPECT_EQ(evaluated.exit_code, program::kSuccess);
  EXPECT_EQ(printed_value(evaluated.results, "validation loss"), printed_value(trained.results, "validation loss"));
  EXPECT_EQ(printed_value(evaluated.results, "bigram entropy"), printed_value(trained.results, "bigram entropy"));
  EXPECT_THAT(evaluated.results, Not(HasSubstr("text:")));
}

TEST_F(EvaluationJobTest, WritesTheSampleThatTheTrainingWrote) {
  job.batches = 0;
  job.data = {};
  job.generation.options.count = 10;
  const std::string sample = trained.results.substr(trained.results.find("sample:\n") + 8);
  EXPECT_EQ(evaluate(job).results, "text:\n" + sample);
}

TEST_F(EvaluationJobTest, GoesOnFromThePrompt) {
  job.generation = {.options = {.count = 5, .temperature = 0}, .prompt = "line 7"};
  EXPECT_THAT(evaluate(job).results, HasSubstr("text:\nline 7"));
  job.generation.prompt = "LINE";
  EXPECT_THAT(error_message<c10::ValueError>([&] { evaluate(job); }), HasSubstr("the character 'L'"));
}

TEST_F(EvaluationJobTest, DryRunPrintsThePlan) {
  job.dry_run = true;
  const std::string plan = evaluate(job).results;
  EXPECT_THAT(plan, HasSubstr("model.safetensors"));
  EXPECT_THAT(plan, HasSubstr("eval_batches"));
  EXPECT_THAT(plan, Not(HasSubstr("validation loss")));
}

TEST_F(EvaluationJobTest, RefusesWhatHasNoEffect) {
  const auto message = [&](const std::function<void(EvaluationJob&)>& change) {
    EvaluationJob changed = job;
    change(changed);
    return error_message<c10::ValueError>([&] { evaluate(changed); });
  };
  EXPECT_THAT(message([](EvaluationJob& it) { it.batch_size = 0; }), HasSubstr("batch_size: must be a multiple"));
  EXPECT_THAT(message([](EvaluationJob& it) { it.batches = 0; }), HasSubstr("has no effect with eval_batches = 0"));
}

// The module's two forwards; rank 0's batch norms are saved and evaluated.
TEST(EvaluationOfAScript, GivesWhatItsTrainingEndedWith) {
  for (const char* const forward : {testing::kPredicts, testing::kGivesLoss}) {
    const TemporaryFolder folder;
    job::TrainJob training = testing::module_job(folder, forward);
    training.output.folder = folder / "run";
    const Printed trained = print_of([&](const job::JobContext& context) { return job::run_job(training, context); });
    EvaluationJob job = script_job(folder / "run/model.pt");
    job.as_model = job.file;
    job.data = training.data;
    job.batch_size = training.training.batch_size;
    job.batches = training.training.eval_batches;
    const std::string evaluated = evaluate(job).results;
    EXPECT_EQ(printed_value(evaluated, "validation loss"), printed_value(trained.results, "validation loss"));
    EXPECT_THAT(trained.results, HasSubstr(evaluated));
  }
}

TEST(EvaluationOfAScript, TheLossIsThatOfItsTraining) {
  const TemporaryFolder folder;
  torch::jit::Module module = testing::trained_module(std::make_shared<torch::jit::CompilationUnit>(), "Scale");
  module.register_parameter("w", at::ones({3}).requires_grad_(), /*is_buffer=*/false);
  module.define("def forward(self, x: Tensor) -> Tensor:\n    return x * self.w\n");
  module.save(folder / "scale.pt");
  for (const char* const part : {"train", "validation"}) {
    testing::write_tensors(folder, part, at::ones({12, 3}), at::full({12, 3}, 1.25));
  }
  job::TrainJob training = testing::small_job(folder);
  training.model = folder / "scale.pt";
  training.model_options = {};
  training.loss = "mse";
  training.data = {folder.path().string()};
  training.output.folder = folder / "run";
  const Printed trained = print_of([&](const job::JobContext& context) { return job::run_job(training, context); });
  EvaluationJob job = script_job(folder / "run/model.pt");
  job.as_model = job.file;
  job.data = training.data;
  job.batch_size = training.training.batch_size;
  job.batches = training.training.eval_batches;
  const std::string evaluated = evaluate(job).results;
  EXPECT_EQ(printed_value(evaluated, "validation loss"), printed_value(trained.results, "validation loss"));
  job.loss = models::Loss::kBceWithLogits;
  EXPECT_THAT(error_message<c10::ValueError>([&] { evaluate(job); }), HasSubstr("needs targets in 0..1"))
      << "what is given counts";
}

TEST(EvaluationOfAScript, ATrainedModuleWritesInTheVocabularyOfItsText) {
  const TemporaryFolder folder;
  const std::string verse = testing::verse();
  const auto characters = static_cast<int64_t>(std::set<char>(verse.begin(), verse.end()).size());
  job::TrainJob training = testing::small_job(folder);
  training.model = folder / "table.pt";
  training.loss = "cross_entropy";
  training.output.folder = folder / "run";
  save_script(table_module(at::zeros({characters, characters}).requires_grad_()), training.model, {});
  const Printed trained = print_of([&](const job::JobContext& context) { return job::run_job(training, context); });
  EXPECT_THAT(trained.results, HasSubstr("bigram entropy"));
  EXPECT_LT(printed_value(trained.results, "validation loss"), std::log(characters));
  EvaluationJob job = script_job(folder / "run/model.pt");
  job.batches = 0;
  job.generation.options.count = 5;
  EXPECT_EQ(evaluate(job).results.size(), std::string("text:\n").size() + 5 + 1);
}

// Uniform logits over the 4 characters give a loss of ln 4 for every text.
TEST(EvaluationOfAScript, TakesTheTextsVocabularyIfItHasNone) {
  const TemporaryFolder folder;
  table_module(at::zeros({4, 4})).save(folder / "uniform.pt");
  EvaluationJob job = script_job(folder / "uniform.pt");
  std::string text;
  for (int i = 0; i < 500; ++i) text += "abcd"[(i + i / 5) % 4];
  job.data = {folder.write("text.txt", text)};
  job.generation.options.count = 3;
  const std::string results = evaluate(job).results;
  EXPECT_NEAR(printed_value(results, "validation loss"), std::log(4), 5e-5) << results;  // printed with 4 digits
  EXPECT_THAT(results.substr(results.find("text:\n")), MatchesRegex("text:\n[abcd]{3}\n"));
  job.batches = 0;
  job.data = {};
  EXPECT_THAT(error_message<c10::ValueError>([&] { evaluate(job); }), HasSubstr("has no vocabulary"));
}

TEST(EvaluationOfAScript, RefusesDataOfAnotherVocabulary) {
  const TemporaryFolder folder;
  table_module(at::zeros({5, 5})).save(folder / "five.pt");
  EvaluationJob job = script_job(folder / "five.pt");
  job.data = {folder.write("text.txt", testing::verse())};
  EXPECT_THAT(error_message<c10::ValueError>([&] { evaluate(job); }),
              HasSubstr("five.pt gives logits for 5 characters, but the data has "));
  save_script(table_module(at::zeros({5, 5})), folder / "five.pt", {"a", "b"});
  std::string text;
  for (int i = 0; i < 500; ++i) text += "ab"[i % 2];
  job.data = {folder.write("text.txt", text)};
  EXPECT_THAT(error_message<c10::ValueError>([&] { evaluate(job); }),
              HasSubstr("five.pt gives logits for 5 characters, but its vocabulary has 2"));
}

// The author of the module chose its vocabulary.
TEST(EvaluationOfAScript, PrintsNothingThatATerminalWouldObey) {
  const TemporaryFolder folder;
  at::Tensor table = at::zeros({3, 3});
  table.select(1, 0).fill_(1);  // The next character is always the first one.
  save_script(table_module(table), folder / "m.pt", {"\x1b", "\n", "\t"});
  EvaluationJob job = script_job(folder / "m.pt");
  job.batches = 0;
  job.generation = {.options = {.count = 2, .temperature = 0}, .prompt = "\t\x1b\n"};
  EXPECT_EQ(evaluate(job).results, "text:\n\t\\x1b\n\\x1b\\x1b\n");
}

TEST(EvaluationOfAScript, AClassifierWritesNoText) {
  const TemporaryFolder folder;
  save_script(table_module(at::eye(3)), folder / "m.pt", {"a", "b", "c"});
  EvaluationJob job = script_job(folder / "m.pt");
  job.as_model = "mlp";
  job.batches = 0;
  job.generation.options.count = 3;
  EXPECT_THAT(error_message<c10::ValueError>([&] { evaluate(job); }), HasSubstr("which cannot generate text"));
}

}  // namespace
}  // namespace narrowcast::inference
