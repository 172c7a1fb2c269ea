// The folder that a training's checkpoints are in, as one process sees it. Nothing here communicates.
//
//   step-00000100/             a checkpoint of step 100: all its files and, written last, manifest.json
//   step-00000200.unfinished/  one that is being written, or whose writer ended; never read
#pragma once

#include <cstdint>
#include <string>
#include <vector>

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

}  // namespace narrowcast::checkpoint
