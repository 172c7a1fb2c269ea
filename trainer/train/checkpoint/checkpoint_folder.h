// The folder that a training's checkpoints are in: as one process sees it, and as all ranks make it ready together and
// find the checkpoint from which they resume.
//
//   step-00000100/             a checkpoint of step 100: all its files and, written last, manifest.json
//   step-00000200.unfinished/  one that is being written, or whose writer ended; never read
//   owner.json                 who writes here (folder_owner.h)
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <narrowcast/process_group.h>
#include "trainer/train/checkpoint/folder_owner.h"
#include "trainer/train/checkpoint/manifest.h"

namespace narrowcast::checkpoint {

// Where the checkpoint of a step is, and where it is until it is whole.
std::string checkpoint_path(const std::string& folder, int64_t step);
std::string unfinished_path(const std::string& folder, int64_t step);

// The steps of the checkpoints in `folder`, newest first, whether they are valid or not; none if there is no such
// folder. Throws c10::ValueError naming a folder that cannot be read.
std::vector<int64_t> checkpoint_steps(const std::string& folder);

// What is wrong with a folder that must not hold checkpoints, but has one of step `newest`; without the folder's name.
std::string holds_checkpoints(int64_t newest);

// Removes what writers that ended have left, and returns its paths. Throws c10::ValueError naming the path.
std::vector<std::string> remove_unfinished(const std::string& folder);

// Removes a checkpoint so that it is never half there: it is made unfinished first. Throws c10::ValueError naming
// the path.
void remove_checkpoint(const std::string& folder, int64_t step);

// A checkpoint as one rank reads it.
struct ReadCheckpoint {
  Manifest manifest;
  Restored restored;
};

// Reads what rank `rank` of `world_size` resumes from out of the checkpoint at `path`, having compared every file that
// it reads with the manifest; the ranks together read them all. A folder named step-N must be of step N. Throws
// CorruptInputError or c10::ValueError naming the file and what is wrong.
ReadCheckpoint read_checkpoint(const std::string& path, int64_t rank, int64_t world_size);

// What becomes of checkpoints that are there already.
enum class Existing {
  kRefuse,  // they are an error
  kKeep,    // the training resumes from one of them
  kRemove,  // the user asked to replace them
};

// A collective: rank 0 makes the folder if it is not there, becomes its owner, under the name of its `job`, and removes
// what is unfinished. Every rank then reads what rank 0 wrote there: ranks on several nodes need a folder that they
// share. Returns the ownership on rank 0, null on the others. Throws c10::ValueError, the same on all ranks, naming the
// folder, if it cannot be made or written, another job owns it, it is not shared, or holds checkpoints under kRefuse.
std::unique_ptr<FolderOwner> prepare_folder(const ProcessGroupPtr& group, const std::string& folder, Existing existing,
                                            const std::string& job = "");

// What was found in a folder.
struct FoundCheckpoint {
  std::optional<ReadCheckpoint> newest;  // what this rank resumes from; none if there is no checkpoint
  std::vector<int64_t> invalid_steps;    // of newer ones that were skipped
};

// Takes a line for people, without its end.
using Warn = std::function<void(const std::string& line)>;

// Whether one of the checkpoints in `folder` was written by the launcher's job `run_id`.
bool has_checkpoint_of(const std::string& folder, const std::string& run_id);

// A collective: the newest checkpoint in `folder` of which every rank finds all that it reads as the manifest says. All
// ranks agree on it, whatever each of them sees. `warn` is called on rank 0, once for each that is skipped, with the
// first file that is wrong and why. Throws CorruptInputError on all ranks if there are checkpoints, but none is valid:
// a training that lost its past must not start anew unasked.
FoundCheckpoint find_newest(const ProcessGroupPtr& group, const std::string& folder, const Warn& warn);

// A collective: the checkpoint at `path`. Throws CorruptInputError on all ranks, naming the first file that is missing
// or wrong.
ReadCheckpoint read_on_all_ranks(const ProcessGroupPtr& group, const std::string& path);

}  // namespace narrowcast::checkpoint
