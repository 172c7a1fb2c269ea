// A job with each hook, on ranks that are threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include <narrowcast/hooks.h>
#include "tests/support/sanitized.h"
#include "tests/trainer/train/job/small_job.h"
#include "trainer/base/files/open_file.h"
#include "trainer/base/program/failure.h"
#include "trainer/train/files/model_file.h"
#include "trainer/train/job/training_job.h"

namespace narrowcast::job {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::TemporaryFolder;

std::vector<nlohmann::json> lines_of(const std::string& path) {
  std::istringstream text(files::read_file(path));
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

TrainJob job_with(const std::string& hook, const TemporaryFolder& folder) {
  TrainJob job = testing::small_job(folder);
  job.training.log_every = 2;
  job.output.folder = folder / "run";
  job.ddp.hook(hook);
  const bool is_power_sgd = hooks::power_sgd_rank_of(hook).has_value();
  if (is_power_sgd) job.ddp.power_sgd({.start = 0});
  // All ranks are on this machine: as one node they would send nothing.
  if (is_power_sgd || hooks::takes_wire_options(hook)) job.ddp.wire({.node_size = 1});
  if (hook == "post_local_sgd") job.outer = OuterOptions().sync_every(2);
  return job;
}

// With two ranks a message is sent once.
void expect_compression(const std::vector<nlohmann::json>& lines) {
  const double sent = lines.back().at("payload_bytes_sent");
  for (const nlohmann::json& line : lines) {
    const bool is_report = line["event"] == "step" || line["event"] == "end";
    EXPECT_EQ(line.contains("compression"), is_report && sent > 0) << line;
    if (line.contains("compression")) {
      EXPECT_NEAR(line["compression"], lines.back().at("payload_bytes_without_hook").get<double>() / sent, 1e-9)
          << line;
    }
  }
}

class HookJobTest : public ::testing::TestWithParam<std::string> {};

TEST_P(HookJobTest, TrainsOnTwoRanksAndLeavesItsFilesAndReports) {
  const TemporaryFolder folder;
  const TrainJob job = job_with(GetParam(), folder);
  check_training_job(job, 2);
  const auto outcomes = testing::run_agreed(job, 2, run_training_job);
  for (const auto& outcome : outcomes) EXPECT_EQ(outcome.exit_code, program::kSuccess) << outcome.progress;
  EXPECT_THAT(outcomes[0].results,
              AllOf(HasSubstr("validation loss"), HasSubstr("bigram entropy"), HasSubstr("sample:")));
  EXPECT_THAT(outcomes[0].progress, HasSubstr("step 4/4"));
  EXPECT_THAT(outcomes[1].results + outcomes[1].progress, IsEmpty());
  const files::SavedModel saved = files::load_model(folder / "run/model.safetensors");
  EXPECT_EQ(saved.name, "char_gpt");
  EXPECT_EQ(saved.model->options()["width"], 16);
  EXPECT_THAT(saved.vocabulary, Not(IsEmpty()));
  const std::vector<nlohmann::json> lines = lines_of(folder / "run/metrics.jsonl");
  EXPECT_EQ(lines.back()["event"], "end");
  EXPECT_EQ(lines.back()["replicas_identical"], GetParam() != "noop");
  expect_compression(lines);
}

INSTANTIATE_TEST_SUITE_P(Hooks, HookJobTest, ::testing::ValuesIn(test::some_of(hooks::comm_hook_names())),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace narrowcast::job
