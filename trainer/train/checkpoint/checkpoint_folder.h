// The folder of a training's checkpoints: as one process sees it, and how all ranks together prepare it and find the
// checkpoint from which they resume.
//
//   step-00000100/             a checkpoint of step 100: all its files and, written last, manifest.json
//   step-00000200.unfinished/  a checkpoint whose writing is in progress or was interrupted; never read
//   owner.json                 the folder's owner (folder_owner.h)
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

// The path of the checkpoint of a step, and its path until it is complete.
std::string checkpoint_path(const std::string& folder, int64_t step);
std::string unfinished_path(const std::string& folder, int64_t step);

// The steps of the checkpoints in `folder`, newest first, valid or not; empty if there is no such folder. Throws
// c10::ValueError naming a folder that cannot be read.
std::vector<int64_t> checkpoint_steps(const std::string& folder);

// The error text, without the folder's name, for a folder that must not contain checkpoints, but has one of step
// `newest`.
std::string holds_checkpoints(int64_t newest);

// Removes the files of interrupted writers, and returns their paths. Throws as files::throw_not_written does, naming
// the path.
std::vector<std::string> remove_unfinished(const std::string& folder);

// Removes a checkpoint so that it never appears incomplete: it is renamed to unfinished first. Throws as
// files::throw_not_written does, naming the path.
void remove_checkpoint(const std::string& folder, int64_t step);

// A checkpoint as one rank reads it.
struct ReadCheckpoint {
  Manifest manifest;
  Restored restored;
};

// Reads the part of the checkpoint at `path` from which rank `rank` of `world_size` resumes. It compares every file
// that it reads with the manifest; the ranks together read all files. A folder named step-N must be of step N. Throws
// CorruptInputError or c10::ValueError naming the file and what is wrong.
ReadCheckpoint read_checkpoint(const std::string& path, int64_t rank, int64_t world_size);

// How to treat existing checkpoints.
enum class Existing {
  kRefuse,  // they are an error
  kKeep,    // the training resumes from one of them
  kRemove,  // the user asked to replace them
};

// Who uses a folder.
struct FolderUser {
  std::string job = {};        // the run_id of its launcher; empty: none
  bool has_recovered = false;  // in place: an owner of the same job on another machine is lost
};

// A collective: rank 0 makes the folder if it does not exist, becomes its owner, as this `user`, and
// removes unfinished checkpoints. Every rank then reads rank 0's file there: ranks on several nodes need a shared
// folder. Returns the ownership on rank 0, null on the others. Throws c10::ValueError naming the folder, the same on
// all ranks, if the folder cannot be created or written, another job owns it, it is not shared, or it contains
// checkpoints under kRefuse.
std::unique_ptr<FolderOwner> prepare_folder(const ProcessGroupPtr& group, const std::string& folder, Existing existing,
                                            const FolderUser& user = {});

// The checkpoints found in a folder.
struct FoundCheckpoint {
  std::optional<ReadCheckpoint> newest;  // from which this rank resumes; none if there is no checkpoint
  std::vector<int64_t> invalid_steps;    // newer ones, which were skipped
};

// Called with a line for people, without a line feed.
using Warn = std::function<void(const std::string& line)>;

// Whether one of the checkpoints in `folder` was written by the launcher's job `run_id`.
bool has_checkpoint_of(const std::string& folder, const std::string& run_id);

// A collective: the newest checkpoint in `folder` whose files match the manifest on every rank. All ranks agree on it,
// even if they see different files. On rank 0 `warn` is called once for each skipped checkpoint, with the first wrong
// file and the reason. Throws CorruptInputError on all ranks if there are checkpoints, but no valid one: a training
// that lost its checkpoints must not restart from scratch unless the user requests it.
FoundCheckpoint find_newest(const ProcessGroupPtr& group, const std::string& folder, const Warn& warn);

// A collective: the checkpoint at `path`. Throws CorruptInputError on all ranks, naming the first file that is missing
// or wrong.
ReadCheckpoint read_on_all_ranks(const ProcessGroupPtr& group, const std::string& path);

}  // namespace narrowcast::checkpoint
