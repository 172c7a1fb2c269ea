// A check of groups that consist of some ranks of another group, before anything is sent in them.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <functional>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

namespace narrowcast::collectives {

// Called on all ranks of `split`. `ranks` are these ranks' numbers in the group for which the check was set, in the
// order of their ranks in `split`. If it throws on a rank, that rank does not use the group, and the exception is the
// reason.
using SplitCheck =
    std::function<void(const c10::intrusive_ptr<c10d::ProcessGroup>& split, const std::vector<int64_t>& ranks)>;

// From now on each group that is split off `group`, or off one of its splits, is checked on all of its ranks as soon as
// it is made (SplitGroup). A later check replaces this one. Thread-safe. It keeps no group alive. The checks of groups
// that have ended are kept until the next call.
void check_splits(const c10::intrusive_ptr<c10d::ProcessGroup>& group, SplitCheck check);

// Checks `split`, which consists of these `ranks` of `parent`, or of all if `ranks` is empty. The check then applies to
// the groups that are split off `split`.
void run_split_check(const c10::intrusive_ptr<c10d::ProcessGroup>& parent,
                     const c10::intrusive_ptr<c10d::ProcessGroup>& split, const std::vector<int64_t>& ranks);

}  // namespace narrowcast::collectives
