// How ranks make a folder ready for checkpoints together.
#pragma once

#include <string>

#include <narrowcast/process_group.h>

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

}  // namespace narrowcast::checkpoint
