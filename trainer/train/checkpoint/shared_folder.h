// How ranks make a folder ready for checkpoints together, and find the one from which they resume.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <narrowcast/process_group.h>
#include "trainer/train/checkpoint/checkpoint_folder.h"

namespace narrowcast::checkpoint {

// What becomes of checkpoints that are there already.
enum class Existing {
  kRefuse,  // they are an error
  kKeep,    // the training resumes from one of them
  kRemove,  // the user asked to replace them
};

// A collective: rank 0 makes the folder if it is not there, and removes what is unfinished. Every rank then reads what
// rank 0 wrote there: ranks on several nodes need a folder that they share. Throws c10::ValueError, the same on all
// ranks, naming the folder, if it cannot be made or written, is not shared, or holds checkpoints under kRefuse.
void prepare_folder(const ProcessGroupPtr& group, const std::string& folder, Existing existing);

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
