// Which checkpoint a training resumes from.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <narrowcast/process_group.h>
#include "trainer/train/checkpoint/checkpoint_folder.h"

namespace narrowcast::checkpoint {

// What was found in a folder.
struct FoundCheckpoint {
  std::optional<ReadCheckpoint> newest;  // what this rank resumes from; none if there is no checkpoint
  std::vector<int64_t> invalid_steps;    // of newer ones that were skipped
};

// Takes a line for people, without its end.
using Warn = std::function<void(const std::string& line)>;

// A collective: the newest checkpoint in `folder` of which every rank finds all that it reads as the manifest says. All
// ranks agree on it, whatever each of them sees. `warn` is called on rank 0, once for each that is skipped, with the
// first file that is wrong and why. Throws CorruptInputError on all ranks if there are checkpoints, but none is valid:
// a training that lost its past must not start anew unasked.
FoundCheckpoint find_newest(const ProcessGroupPtr& group, const std::string& folder, const Warn& warn);

// A collective: the checkpoint at `path`. Throws CorruptInputError on all ranks, naming the first file that is missing
// or wrong.
ReadCheckpoint read_on_all_ranks(const ProcessGroupPtr& group, const std::string& path);

}  // namespace narrowcast::checkpoint
