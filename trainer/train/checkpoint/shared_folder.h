// Makes a folder ready for a training's checkpoints.
#pragma once

#include <string>

#include <narrowcast/consensus.h>

namespace narrowcast::checkpoint {

// What to do with checkpoints that are there already.
enum class Existing {
  kRefuse,  // it is an error
  kKeep,    // the training goes on from one of them
  kRemove,  // the user asked to replace them
};

// A collective: rank 0 makes the folder if it is not there, and removes what is unfinished. Every rank then reads what
// rank 0 wrote there: ranks on several nodes need a folder that they share. Throws c10::ValueError, the same on all
// ranks, naming the folder, if it cannot be made or written, is not shared, or holds checkpoints under kRefuse.
void prepare_folder(const ProcessGroupPtr& group, const std::string& folder, Existing existing);

}  // namespace narrowcast::checkpoint
