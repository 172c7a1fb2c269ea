// What ranks do together with a folder: they make it ready for checkpoints, and learn what failed on one of them.
#pragma once

#include <functional>
#include <string>

#include <narrowcast/consensus.h>

namespace narrowcast::checkpoint {

// A collective: every rank calls its `body`; what it throws because of wrong use, a file or the disk is caught. Returns
// the same on all ranks: nothing, or what the first rank in rank order that failed threw, e.g. "rank 1: FILE: cannot be
// written: No space left on device" (without the rank where there is only one). It is printable and at most about
// 2000 bytes long, whatever a rank sends.
std::string first_failure(const ProcessGroupPtr& group, const std::function<void()>& body);

// A collective: rank 0's text, on all ranks.
std::string from_rank_0(const ProcessGroupPtr& group, const std::string& text);

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
