// Shares information of one rank with all: the first failure, or a text of rank 0.
#pragma once

#include <functional>
#include <string>

#include <narrowcast/process_group.h>

namespace narrowcast {

// A collective: every rank calls its `body`, and exceptions because of wrong use, a file or the disk are caught.
// Returns the same text on all ranks: empty, or the message of the first failed rank in rank order. An example is "rank
// 1: FILE: cannot be written: No space left on device" (without the rank in a world of one). The text is printable and
// at most about 2000 bytes long, even if a rank sends something else.
std::string first_failure(const ProcessGroupPtr& group, const std::function<void()>& body);

// A collective: every rank calls its `body`. If one fails, it throws on all ranks, with `prefix` and the text that
// first_failure returns. The class is narrowcast::OutputError if the first failed rank in rank order threw one, else
// c10::ValueError.
void do_on_all_ranks(const ProcessGroupPtr& group, const std::string& prefix, const std::function<void()>& body);

// A collective: returns rank 0's text on all ranks.
std::string from_rank_0(const ProcessGroupPtr& group, const std::string& text);

}  // namespace narrowcast
