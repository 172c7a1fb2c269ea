// What all ranks learn from one of them: that it failed, or what rank 0 says. consensus.cpp has these functions.
#pragma once

#include <functional>
#include <string>

#include <narrowcast/process_group.h>

namespace narrowcast {

// A collective: every rank calls its `body`; what it throws because of wrong use, a file or the disk is caught. Returns
// the same on all ranks: nothing, or what the first rank in rank order that failed threw, e.g. "rank 1: FILE: cannot be
// written: No space left on device" (without the rank where there is only one). It is printable and at most about
// 2000 bytes long, whatever a rank sends.
std::string first_failure(const ProcessGroupPtr& group, const std::function<void()>& body);

// A collective: every rank calls its `body`. Throws on all ranks if one fails: narrowcast::OutputError if the first
// rank in rank order that failed threw one, else c10::ValueError, with `prefix` and what first_failure returns.
void do_on_all_ranks(const ProcessGroupPtr& group, const std::string& prefix, const std::function<void()>& body);

// A collective: rank 0's text, on all ranks.
std::string from_rank_0(const ProcessGroupPtr& group, const std::string& text);

}  // namespace narrowcast
