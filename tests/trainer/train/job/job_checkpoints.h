// A job of four steps that saves every second step and resumes from its checkpoints.
#pragma once

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"
#include "tests/trainer/train/job/small_job.h"
#include "trainer/base/files/open_file.h"
#include "trainer/base/program/failure.h"
#include "trainer/train/checkpoint/manifest.h"
#include "trainer/train/job/train_job.h"

namespace narrowcast::testing {

class JobCheckpointsTest : public ::testing::Test {
 protected:
  JobCheckpointsTest() : job(small_job(folder)) {
    job.checkpoints = {.folder = checkpoints, .every = 2, .keep = 0, .resume = true, .resume_from = {}};
    job.output.folder = folder / "run";
  }
  // Runs the job in a single process; returns its progress output.
  std::string run() {
    const JobOutcome outcome = run_alone(job);
    EXPECT_EQ(outcome.exit_code, program::kSuccess);
    results = outcome.results;
    return outcome.progress;
  }
  std::string complaint() {
    return error_message<c10::ValueError>([&] { run(); });
  }
  std::string model() const { return files::read_file(folder / "run/model.safetensors"); }
  // Simulates an interruption: everything since step 2 is lost.
  void lose_step_4() { std::filesystem::remove_all(checkpoints + "/step-00000004"); }
  // Simulates a checkpoint of step 2 that was written before that setting existed.
  void forget_setting(const std::string& name) const {
    const std::string path = checkpoints + "/step-00000002/manifest.json";
    checkpoint::Manifest manifest = checkpoint::parse_manifest(files::read_file(path), path);
    EXPECT_EQ(manifest.settings.erase(name), 1u);
    folder.write("checkpoints/step-00000002/manifest.json", checkpoint::format_manifest(manifest));
  }

  const TemporaryFolder folder;
  const std::string checkpoints = folder / "checkpoints";
  std::string results;
  job::TrainJob job;
};

}  // namespace narrowcast::testing
