// Checkpoints of a few numbers.
#pragma once

#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include <narrowcast/process_group.h>
#include "tests/support/ranks.h"
#include "tests/support/temporary_folder.h"
#include "trainer/train/checkpoint/checkpoint_writer.h"

namespace narrowcast::testing {

// Content whose tensors all differ by step and rank.
inline checkpoint::Content small_content(int64_t step, int64_t rank) {
  return {.step = step,
          .training = {{"note", "step " + std::to_string(step)}},
          .replica = {{"weight", at::full({3}, static_cast<double>(step), at::kFloat)}},
          .rank = {{"own", at::full({2}, static_cast<double>(100 * step + rank), at::kDouble)}}};
}

inline void write_checkpoint(const ProcessGroupPtr& group, const std::string& folder, int64_t step) {
  checkpoint::CheckpointWriter writer(group, {.folder = folder, .keep = 0}, {{{"hook", "int8"}}, {{"ranks", 2}}});
  writer.write(small_content(step, group->getRank()));
}

// A test with a folder for checkpoints.
class CheckpointTest : public ::testing::Test {
 protected:
  // Writes a checkpoint of each of these steps with `ranks` ranks.
  void write_checkpoints(int64_t ranks, const std::vector<int64_t>& steps) const {
    run_ranks(ranks, [&](int64_t, const ProcessGroupPtr& group) {
      for (const int64_t step : steps) {
        write_checkpoint(group, path, step);
      }
    });
  }

  const TemporaryFolder folder;
  const std::string path = folder.path().string();
};

}  // namespace narrowcast::testing
