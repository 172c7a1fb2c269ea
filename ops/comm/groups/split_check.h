// What is to hold of groups that are made of some ranks of another one, before anything is sent in them.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <functional>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

namespace narrowcast::collectives {

// Called on all ranks of a group, with their ranks in the group that the check was given for, in the order of their
// ranks in this one. What it throws on one is why that rank does not use the group.
using SplitCheck =
    std::function<void(const c10::intrusive_ptr<c10d::ProcessGroup>& split, const std::vector<int64_t>& ranks)>;

// From now on each group that is split off `group`, or off such a one, is checked as soon as it is made (SplitGroup),
// on all of its ranks. A later check takes the place of this one. Thread-safe; keeps no group alive, and the checks of
// those that have ended until the next call.
void check_splits(const c10::intrusive_ptr<c10d::ProcessGroup>& group, SplitCheck check);

// Checks `split`, which consists of these `ranks` of `parent`, as that says, and hands the check on to it. Without
// ranks it consists of all.
void run_split_check(const c10::intrusive_ptr<c10d::ProcessGroup>& parent,
                     const c10::intrusive_ptr<c10d::ProcessGroup>& split, const std::vector<int64_t>& ranks);

}  // namespace narrowcast::collectives
