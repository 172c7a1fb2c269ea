#include "trainer/train/job/train_job.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/eye.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include <narrowcast/errors.h>
#include "tests/support/data_files.h"
#include "tests/support/error_message.h"
#include "tests/support/gpt2_weights.h"
#include "tests/trainer/train/files/script_fixtures.h"
#include "tests/trainer/train/job/small_job.h"
#include "trainer/base/program/failure.h"
#include "trainer/train/files/model_file.h"
#include "trainer/train/files/safetensors.h"
#include "trainer/train/files/weight_files.h"

namespace narrowcast::job {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::JobOutcome;
using ::testing::Not;
using testing::run_alone;
using testing::small_job;
using testing::TemporaryFolder;

TEST(MakeInputs, FitsTheModelToTheText) {
  const TemporaryFolder folder;
  const JobInputs inputs = make_inputs(small_job(folder));
  EXPECT_EQ(inputs.model->options()["vocabulary_size"], static_cast<int64_t>(inputs.vocabulary.size()));
  EXPECT_EQ(inputs.model->options()["width"], 16);
  EXPECT_EQ(inputs.unit, "tokens");
  EXPECT_EQ(inputs.units_per_sample, 8);
  EXPECT_EQ(inputs.dataset->training_batch({0}).inputs.size(1), 8);
  EXPECT_NE(inputs.data_name.find("verse.txt"), std::string::npos);
  EXPECT_GT(inputs.bigram_entropy.value(), 0);
}

TEST(MakeInputs, InitialParametersFollowTheSeed) {
  const TemporaryFolder folder;
  TrainJob job = small_job(folder);
  const at::Tensor first = make_inputs(job).model->parameters()[0];
  EXPECT_TRUE(at::equal(first, make_inputs(job).model->parameters()[0]));
  job.seed = 1;
  EXPECT_FALSE(at::equal(first, make_inputs(job).model->parameters()[0]));
}

TEST(MakeInputs, ReadsTinyShakespeareWithoutData) {
  const TemporaryFolder folder;
  TrainJob job = small_job(folder);
  job.data = {};
  const JobInputs inputs = make_inputs(job);
  EXPECT_GT(inputs.dataset->training_size(), 100'000);
  EXPECT_EQ(inputs.vocabulary.size(), 65U) << "Tiny Shakespeare";
}

TEST(MakeInputs, ReferenceTaskHasNoData) {
  const TemporaryFolder folder;
  TrainJob job = small_job(folder);
  job.model = "ddp_comm_hook_task";
  job.model_options = {};
  const JobInputs inputs = make_inputs(job);
  EXPECT_EQ(inputs.dataset, nullptr);
  EXPECT_EQ(inputs.model->parameters()[0].numel(), 800);
}

TEST(MakeInputs, LoadsAModuleOverImages) {
  const TemporaryFolder folder;
  const TrainJob job = testing::module_job(folder);
  torch::jit::Module for_inference = testing::digit_net();
  for_inference.eval();
  for_inference.save(job.model);
  const JobInputs inputs = make_inputs(job);
  EXPECT_EQ(inputs.model->named_parameters().size(), 6U);
  EXPECT_TRUE(inputs.model->is_training());
  ASSERT_NE(inputs.script, nullptr);
  EXPECT_NE(inputs.file_hash.value(), 0U);
  EXPECT_EQ(inputs.unit, "samples");
  EXPECT_EQ(inputs.units_per_sample, 1);
  EXPECT_EQ(inputs.dataset->training_batch({0}).inputs.sizes(), at::IntArrayRef({1, 8, 8}));
}

TEST(MakeInputs, LoadsAModuleOverText) {
  const TemporaryFolder folder;
  TrainJob job = small_job(folder);
  job.model = folder / "net.pt";
  job.model_options = {{"context", 5}};
  job.loss = "cross_entropy";
  testing::save_script(testing::table_module(at::eye(30).requires_grad_()), job.model, {});
  EXPECT_EQ(make_inputs(job).units_per_sample, 5);
  EXPECT_EQ(make_inputs(job).unit, "tokens");
  job.model_options = {};
  EXPECT_EQ(make_inputs(job).units_per_sample, 64);
  testing::save_script(testing::table_module(at::eye(2).requires_grad_()), job.model, {"x", "y"});
  EXPECT_THAT(testing::error_message<c10::ValueError>([&] { make_inputs(job); }),
              HasSubstr("is not in the model's vocabulary of 2 characters"));
}

std::vector<at::Tensor> parameters_of(const TrainJob& job) { return make_inputs(job).model->parameters(); }

// A job that begins with a file of GPT-2's weights in the layout of Hugging Face.
TrainJob gpt2_job(const TemporaryFolder& folder) {
  TrainJob job = small_job(folder);
  job.model = "gpt";
  job.model_options = {{"heads", 4}};
  job.init_from = folder / "gpt2.safetensors";
  files::write_safetensors(job.init_from, {.tensors = testing::gpt2_weights({.vocabulary = 40}), .metadata = {}});
  return job;
}

TEST(MakeInputs, BeginsWithTheWeightsOfAFile) {
  const TemporaryFolder folder;
  TrainJob job = gpt2_job(folder);
  const JobInputs inputs = make_inputs(job);
  EXPECT_TRUE(at::equal(inputs.model->parameters()[0], testing::gpt2_weights({.vocabulary = 40}).at("wte.weight")));
  EXPECT_EQ(inputs.units_per_sample, 8) << "the file's context";
  EXPECT_EQ(inputs.init_hash, files::hash_of_files({job.init_from}));
  EXPECT_EQ(inputs.model->options()["vocabulary_size"], 40);
  EXPECT_LT(inputs.vocabulary.size(), 40U) << "the text has fewer characters";
}

// Python's state_dict lacks buffers, here of a batch norm, that the class registers with persistent=False.
TEST(MakeInputs, NamesBuffersThatTheFileOfTheFirstParametersLacks) {
  const TemporaryFolder folder;
  TrainJob job = testing::module_job(folder);
  job.init_from = folder / "weights.safetensors";
  const auto write_without = [&](const std::vector<std::string>& names) {
    files::Safetensors content = {.tensors = files::state_of(*make_inputs(testing::module_job(folder)).model),
                                  .metadata = {}};
    for (const std::string& name : names) content.tensors.erase(name);
    files::write_safetensors(job.init_from, content);
  };
  write_without({});
  EXPECT_THAT(make_inputs(job).warnings, IsEmpty());
  write_without({"norm.running_mean"});
  const std::string begin = "init_from: " + job.init_from + " lacks the buffer";
  EXPECT_THAT(make_inputs(job).warnings,
              ElementsAre(begin + " 'norm.running_mean': the values in " + job.model + " are kept"));
  write_without({"norm.running_mean", "norm.running_var"});
  EXPECT_THAT(
      make_inputs(job).warnings,
      ElementsAre(begin + "s 'norm.running_mean', 'norm.running_var': the values in " + job.model + " are kept"));
  job.dry_run = true;
  const JobOutcome outcome = run_alone(job);
  EXPECT_EQ(outcome.exit_code, program::kSuccess);
  EXPECT_THAT(outcome.progress, HasSubstr("warning: " + begin + "s 'norm.running_mean', 'norm.running_var'"));
}

// The file is from save_model, with the job's model under another seed.
TEST(MakeInputs, BeginsWithWhatATrainingWrote) {
  const TemporaryFolder folder;
  for (TrainJob job : {small_job(folder), testing::module_job(folder)}) {
    job.seed = 5;
    const JobInputs first = make_inputs(job);
    const bool is_script = first.script != nullptr;
    if (is_script) first.model->parameters()[0].detach().fill_(0.25);
    const std::string file = folder / "m.safetensors";
    files::save_model(
        file, {.name = is_script ? models::kScript : job.model, .model = first.model, .vocabulary = first.vocabulary});
    job.seed = 6;
    EXPECT_FALSE(at::equal(parameters_of(job)[0], first.model->parameters()[0])) << job.model;
    job.init_from = file;
    EXPECT_TRUE(at::equal(parameters_of(job)[0], first.model->parameters()[0])) << job.model;
  }
}

TEST(MakeInputs, ReadsTextInTheVocabularyOfTheFirstParameters) {
  const TemporaryFolder folder;
  TrainJob job = small_job(folder);
  job.model = "gpt";
  const JobInputs first = make_inputs(job);
  std::vector<std::string> reversed(first.vocabulary.rbegin(), first.vocabulary.rend());
  job.init_from = folder / "m.safetensors";
  files::save_model(job.init_from, {.name = "gpt", .model = first.model, .vocabulary = reversed});
  EXPECT_EQ(make_inputs(job).vocabulary, reversed);
  const int64_t last = static_cast<int64_t>(reversed.size()) - 1;
  const at::Tensor tokens = first.dataset->training_batch({0}).inputs;
  EXPECT_TRUE(make_inputs(job).dataset->training_batch({0}).inputs.equal(last - tokens));
  job.data = {folder.write("greek.txt", testing::verse() + "\xce\xb1")};
  EXPECT_THAT(testing::error_message<c10::ValueError>([&] { make_inputs(job); }),
              HasSubstr("is not in the model's vocabulary of "));
}

TEST(MakeInputs, AVocabularyMustDoForTheData) {
  const TemporaryFolder folder;
  TrainJob job = small_job(folder);
  const int64_t needed = make_inputs(job).model->options()["vocabulary_size"];
  job.model = "gpt";
  EXPECT_EQ(make_inputs(job).model->options()["vocabulary_size"], needed);
  job.model_options["vocabulary_size"] = 50304;
  EXPECT_EQ(make_inputs(job).model->options()["vocabulary_size"], 50304);
  job.model_options["vocabulary_size"] = 3;
  const std::string error = c10::str("vocabulary_size: is 3, but the data need ", needed);
  EXPECT_EQ(testing::error_message<c10::ValueError>([&] { make_inputs(job); }), error);
  job = gpt2_job(folder);
  files::write_safetensors(job.init_from, {.tensors = testing::gpt2_weights({.vocabulary = 3}), .metadata = {}});
  EXPECT_EQ(testing::error_message<c10::ValueError>([&] { make_inputs(job); }), error);
}

TEST(MakeInputs, SaysWhatTheModelDoesInTraining) {
  const TemporaryFolder folder;
  TrainJob job = small_job(folder);
  const models::Batch batch = first_batch(job, make_inputs(job), 0, 1);
  const double loss = make_inputs(job).model->forward(batch).item<double>();
  job.regularization.label_smoothing = 0.5;
  EXPECT_NE(make_inputs(job).model->forward(batch).item<double>(), loss);
  job.regularization = {.dropout = 0.5};
  const auto model = make_inputs(job).model;
  EXPECT_NE(model->forward(batch).item<double>(), model->forward(batch).item<double>());
  job.regularization = {.dropout = 1};
  EXPECT_THROW(make_inputs(job), c10::ValueError);
}

TEST(MakeInputs, RefusesWhatDoesNotFit) {
  const TemporaryFolder folder;
  const auto with = [&](auto change) {
    TrainJob job = small_job(folder);
    change(job);
    make_inputs(job);
  };
  EXPECT_THROW(with([](TrainJob& job) { job.model = "gpt5"; }), c10::ValueError);
  EXPECT_THROW(with([](TrainJob& job) { job.model_options["hidden"] = 3; }), c10::ValueError);
  EXPECT_THROW(with([](TrainJob& job) { job.model_options["context"] = 4000; }), c10::ValueError);
  EXPECT_THROW(with([](TrainJob& job) { job.data = {"/no/such/file"}; }), c10::ValueError);
  EXPECT_THROW(with([](TrainJob& job) { job.model = "mlp"; }), c10::ValueError);
  EXPECT_THROW(with([&](TrainJob& job) { job.data = {folder.write("bad.txt", "\xff\xfe")}; }), CorruptInputError);
}

TEST(RunJob, Trains) {
  const TemporaryFolder folder;
  const JobOutcome outcome = run_alone(small_job(folder));
  EXPECT_EQ(outcome.exit_code, program::kSuccess);
  EXPECT_THAT(outcome.results, HasSubstr("validation loss"));
  EXPECT_THAT(outcome.progress, HasSubstr("step 4/4"));
}

TEST(RunJob, TrainsAModule) {
  for (const char* const forward : {testing::kPredicts, testing::kGivesLoss}) {
    const TemporaryFolder folder;
    const JobOutcome outcome = run_alone(testing::module_job(folder, forward));
    EXPECT_EQ(outcome.exit_code, program::kSuccess);
    EXPECT_THAT(outcome.results, HasSubstr("validation loss"));
    EXPECT_EQ(outcome.results.find("accuracy") != std::string::npos, forward == testing::kPredicts);
  }
}

// A dry run makes all checks before the ranks meet.
TEST(RunJob, RefusesAModuleThatCannotBeTrained) {
  const TemporaryFolder folder;
  const auto with = [&](const torch::jit::Module& module, auto change) {
    TrainJob job = testing::module_job(folder);
    module.save(job.model);
    job.dry_run = true;
    change(job);
    return testing::error_message<c10::ValueError>([&] { run_alone(job); });
  };
  const auto as_it_is = [](TrainJob&) {};
  torch::jit::Module frozen = testing::digit_net();
  frozen.eval();
  EXPECT_THAT(with(torch::jit::freeze(frozen), as_it_is), HasSubstr("net.pt: none of its 0 parameters requires"));
  EXPECT_THAT(with(testing::digit_net(), [](TrainJob& job) { job.loss = "hinge"; }), HasSubstr("but is 'hinge'"));
  EXPECT_THAT(with(testing::digit_net(), [](TrainJob& job) { job.loss = ""; }), HasSubstr("loss: must be"));
  EXPECT_THAT(with(testing::digit_net(testing::kGivesLoss), as_it_is), HasSubstr("loss: has no effect with "));
  EXPECT_THAT(
      with(testing::digit_net(), [&](TrainJob& job) { job.data = {folder / "verse.txt"}; }),
      HasSubstr("net.pt: its forward must return one row of logits per target, classes last, but returns [6, 10] for "
                "targets of shape [6, 64]"));
  TrainJob job = testing::module_job(folder);
  folder.write("net.pt", "no archive");
  EXPECT_THROW(make_inputs(job), CorruptInputError);
  job.model = folder / "none.pt";
  EXPECT_THROW(make_inputs(job), c10::ValueError);
}

// The wrong target is the last one that is held out. It is too large or negative.
TEST(RunJob, LooksThroughAllClassesFirst) {
  const TemporaryFolder folder;
  const TemporaryFolder tensors;
  const auto with = [&](int64_t last, const char* forward) {
    at::Tensor targets = at::arange(40, at::kLong) % 10;
    testing::write_tensors(tensors, "train", at::ones({40, 8, 8}, at::kByte), targets);
    targets[39] = last;
    testing::write_tensors(tensors, "validation", at::ones({40, 8, 8}, at::kByte), targets);
    TrainJob job = testing::module_job(folder, forward);
    job.data = {tensors.path().string()};
    job.dry_run = true;
    return run_alone(job).exit_code;
  };
  EXPECT_EQ(with(9, testing::kPredicts), program::kSuccess);
  EXPECT_THAT(testing::error_message<c10::ValueError>([&] { with(10, testing::kPredicts); }),
              HasSubstr("net.pt: returns logits for 10 classes, but the data needs 11"));
  EXPECT_THAT(testing::error_message<CorruptInputError>([&] { with(-100, testing::kPredicts); }),
              HasSubstr(": has the class -100, but classes count from 0"));
  EXPECT_EQ(with(-100, testing::kGivesLoss), program::kSuccess);
}

TEST(RunJob, VerifiesInsteadOfTraining) {
  const TemporaryFolder folder;
  TrainJob job = small_job(folder);
  job.verification = verification::VerificationOptions{.hooks = {"none", "quantize_per_tensor"}};
  const JobOutcome outcome = run_alone(job);
  EXPECT_EQ(outcome.exit_code, program::kSuccess);
  EXPECT_THAT(outcome.results, HasSubstr("quantize_per_tensor"));
  EXPECT_THAT(outcome.progress, IsEmpty());
  job.verification->tolerance_scale = 1e-3;
  EXPECT_EQ(run_alone(job).exit_code, program::kCheckFailed);
}

TEST(RunJob, DryRunPrintsThePlanOfAWorldItDoesNotJoin) {
  const TemporaryFolder folder;
  TrainJob job = small_job(folder);
  job.dry_run = true;
  job.output.folder = folder / "run";
  WorkerEnv env;
  env.world_size = 3;
  EXPECT_THAT(run_alone(job, env).results, HasSubstr("ranks                            3"));
  EXPECT_FALSE(std::filesystem::exists(folder / "run"));
  env.rank = 1;
  EXPECT_THAT(run_alone(job, env).results, IsEmpty());
}

TEST(RunJob, RefusesSharesThatTheModelOrTheHookCannotHave) {
  const TemporaryFolder folder;
  WorkerEnv env;
  env.world_size = 2;
  const auto complaint = [&](TrainJob job, const std::string& shares) {
    job.dry_run = true;
    job.training.shares = data::parse_shares(shares);
    return error_message<c10::ValueError>([&] { run_alone(job, env); });
  };
  const TrainJob of_module = testing::module_job(folder);
  EXPECT_EQ(complaint(of_module, "equal"), "nothing was thrown");
  EXPECT_EQ(complaint(of_module, "4,2"),
            "shares: 4,2 would change the statistics of batch norm, which " + of_module.model +
                " has (norm.running_mean); replace it by group norm or layer norm, leave out shares, or allow it with "
                "shares_with_batch_norm");
  EXPECT_EQ(complaint(of_module, "3,3"), "nothing was thrown") << "the same as equal";
  TrainJob local = small_job(folder);
  local.ddp.hook("noop");
  EXPECT_EQ(complaint(local, "auto"),
            "shares: auto needs a hook that averages the gradients of all ranks in each step, but the hook is noop");
  TrainJob job = small_job(folder);
  EXPECT_THAT(complaint(job, "4,3"), HasSubstr("shares: must add up to batch_size, which is 6"));
  job.dry_run = true;
  job.training.shares = data::parse_shares("4,2");
  const std::string plan = run_alone(job, env).results;
  EXPECT_THAT(plan, HasSubstr("4,2"));
  EXPECT_THAT(plan, HasSubstr("[4,2]"));
}

TEST(RunJob, ChecksBeforeItReadsOrJoins) {
  const TemporaryFolder folder;
  const auto with = [&](auto change) {
    TrainJob job = small_job(folder);
    job.data = {"/no/such/file"};
    change(job);
    return testing::error_message<c10::ValueError>([&] { run_alone(job); });
  };
  EXPECT_THAT(with([](TrainJob& job) { job.ddp.hook("int3"); }), HasSubstr("known: none, allreduce"));
  EXPECT_THAT(with([](TrainJob& job) { job.ddp.bucket_cap_mb(-1); }), HasSubstr("bucket_cap_mb"));
  EXPECT_THAT(with([](TrainJob& job) { job.training.steps = 0; }), HasSubstr("steps"));
  EXPECT_THAT(with([](TrainJob& job) { job.threads = -1; }), HasSubstr("threads"));
  EXPECT_THAT(with([](TrainJob& job) { job.output.sample_length = -1; }), HasSubstr("sample_length"));
  EXPECT_THAT(with([](TrainJob& job) { job.seed = -1; }), HasSubstr("seed: must be at least 0, but is -1"));
  EXPECT_THAT(with([](TrainJob&) {}), HasSubstr("/no/such/file"));
}

}  // namespace
}  // namespace narrowcast::job
