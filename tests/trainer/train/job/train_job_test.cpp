#include "trainer/train/job/train_job.h"

#include <ATen/ops/equal.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <narrowcast/errors.h>
#include "tests/trainer/train/job/small_job.h"

namespace narrowcast::job {
namespace {

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

TEST(MakeInputs, ReadsTheProjectsOwnTextWithoutData) {
  const TemporaryFolder folder;
  TrainJob job = small_job(folder);
  job.data = {};
  const JobInputs inputs = make_inputs(job);
  EXPECT_GT(inputs.dataset->training_size(), 100'000);
  EXPECT_GT(inputs.vocabulary.size(), 90U);
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

TEST(MakeInputs, RefusesWhatDoesNotFit) {
  const TemporaryFolder folder;
  const auto with = [&](auto change) {
    TrainJob job = small_job(folder);
    change(job);
    make_inputs(job);
  };
  EXPECT_THROW(with([](TrainJob& job) { job.seed = -1; }), c10::ValueError);
  EXPECT_THROW(with([](TrainJob& job) { job.model = "gpt5"; }), c10::ValueError);
  EXPECT_THROW(with([](TrainJob& job) { job.model_options["hidden"] = 3; }), c10::ValueError);
  EXPECT_THROW(with([](TrainJob& job) { job.model_options["context"] = 4000; }), c10::ValueError);
  EXPECT_THROW(with([](TrainJob& job) { job.data = {"/no/such/file"}; }), c10::ValueError);
  EXPECT_THROW(with([](TrainJob& job) { job.model = "mlp"; }), c10::ValueError);
  EXPECT_THROW(with([&](TrainJob& job) { job.data = {folder.write("bad.txt", "\xff\xfe")}; }), CorruptInputError);
}

}  // namespace
}  // namespace narrowcast::job
