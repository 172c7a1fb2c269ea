// Groups whose collectives are aborted because one of their ranks is lost.
//
// NCCL's kernels wait for a lost rank, between GPUs that share memory without end, and so does every thread that waits
// for their stream. Breaking a group off ends these kernels. The memory that they were writing has no meaning then. The
// groups that were split off a group have separate communicators, so all are broken off together, each once.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include <narrowcast/export.h>

namespace narrowcast {
namespace NARROWCAST_EXPORT collectives {

// Breaks off the collectives of `group` and of all groups split off it. Groups that are split off later are broken off
// at once. It calls abort() of each backend in a separate thread, because one abort() may wait for kernels of another
// backend (NCCL frees memory of the GPU, which waits for all kernels). Returns when all have returned. The group stays
// broken off, with the first `why`. Thread-safe. It throws nothing that a backend throws.
void break_off(const c10::intrusive_ptr<c10d::ProcessGroup>& group, const std::string& why);

// The `why` of break_off for `group`; empty if it is not broken off.
std::string why_broken_off(const c10::intrusive_ptr<c10d::ProcessGroup>& group);

// The failure that a backend of `group`, or of a group split off it, has found itself: "a collective timed out" or "a
// collective failed". NCCL's backend has then ended its kernels as break_off does. Empty without a failure, and for
// backends that do not report errors in this way.
std::string failure_in_backends(const c10::intrusive_ptr<c10d::ProcessGroup>& group);

// Waits for the work that is enqueued on the GPU of `group`, if it moves tensors on GPUs. Throws
// c10::DistBackendError if collectives of `group` were broken off, or have failed in a backend, until then: results on
// the GPU have no meaning. The host notices it at no other place, because it enqueues collectives without waiting.
void wait_for_results(const c10::intrusive_ptr<c10d::ProcessGroup>& group);

struct GroupFate;

// Owns a group that was split off another one, or no group. The destructor shuts the group down. The ranks destroy this
// object when none of them enqueues anything more. If an exception destroys it, the group is aborted instead, unless it
// was broken off before.
class SplitGroup {
 public:
  using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

  SplitGroup() = default;
  // `group` consists of these `ranks` of `parent`, or of all if `ranks` is empty. If `parent` is broken off, breaks
  // `group` off. Else throws what the check of the parent's splits throws (check_splits).
  SplitGroup(const Group& parent, Group group, const std::vector<int64_t>& ranks = {});
  ~SplitGroup();
  SplitGroup(const SplitGroup&) = delete;
  SplitGroup& operator=(const SplitGroup&) = delete;
  SplitGroup(SplitGroup&& other) noexcept = default;
  SplitGroup& operator=(SplitGroup&& other) noexcept;

  // Null if it owns no group.
  const Group& group() const { return group_; }

 private:
  void end() noexcept;

  Group group_;
  std::shared_ptr<GroupFate> parent_;  // The fate of the parent group.
};

}  // namespace collectives
}  // namespace narrowcast
