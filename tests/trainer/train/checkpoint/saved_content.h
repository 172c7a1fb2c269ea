// Checkpoints of a few numbers.
#pragma once

#include <ATen/ops/full.h>

#include <string>

#include <narrowcast/process_group.h>
#include "trainer/train/checkpoint/checkpoint_writer.h"

namespace narrowcast::testing {

// Tells step and rank apart in every tensor.
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

}  // namespace narrowcast::testing
