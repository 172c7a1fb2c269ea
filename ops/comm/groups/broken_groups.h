// Groups whose collectives are broken off because a rank of them is lost.
//
// NCCL's kernels wait for a rank that is gone, between GPUs that share memory without end, and whoever waits for the
// stream waits with them. Breaking a group off ends these kernels; what they leave in memory means nothing. As the
// groups that were split off a group have communicators of their own, all are broken off together, each once.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include <narrowcast/export.h>

namespace narrowcast::collectives {

// Breaks off the collectives of `group` and of all groups split off it, and of those split off later at once: their
// backends' abort(), each in a thread of its own, because one may wait for kernels of another (NCCL frees memory of the
// GPU, which waits for all kernels). Returns when all have. A group that is broken off stays so, with the first `why`.
// Thread-safe, and throws nothing that a backend throws.
NARROWCAST_EXPORT void break_off(const c10::intrusive_ptr<c10d::ProcessGroup>& group, const std::string& why);

// What break_off said of `group`; empty if it is not broken off.
NARROWCAST_EXPORT std::string why_broken_off(const c10::intrusive_ptr<c10d::ProcessGroup>& group);

// What a backend of `group`, or of a group split off it, has found itself: "a collective timed out" or "a collective
// failed", after which NCCL's has ended its kernels as break_off does. Empty if nothing, and for backends without
// errors of that kind.
NARROWCAST_EXPORT std::string failure_in_backends(const c10::intrusive_ptr<c10d::ProcessGroup>& group);

struct GroupFate;

// Owns a group that was split off another one, or none. It is shut down with this object, which the ranks destroy when
// none of them enqueues anything more: after an exception, broken off, unless it was before.
class NARROWCAST_EXPORT SplitGroup {
 public:
  using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

  SplitGroup() = default;
  // `group` consists of these `ranks` of `parent`; without ranks, of all. Breaks it off if `parent` is broken off; else
  // throws what the check of its splits does (check_splits).
  SplitGroup(const Group& parent, Group group, const std::vector<int64_t>& ranks = {});
  ~SplitGroup();
  SplitGroup(const SplitGroup&) = delete;
  SplitGroup& operator=(const SplitGroup&) = delete;
  SplitGroup(SplitGroup&& other) noexcept = default;
  SplitGroup& operator=(SplitGroup&& other) noexcept;

  // Null: none.
  const Group& group() const { return group_; }

 private:
  void end() noexcept;

  Group group_;
  std::shared_ptr<GroupFate> parent_;  // Of the group that it was split off.
};

}  // namespace narrowcast::collectives
