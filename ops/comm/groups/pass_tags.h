// Tags by which ranks find out that they do not average the gradients of the same backward pass.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/intrusive_ptr.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include <narrowcast/export.h>
#include "ops/comm/engine/engine.h"
#include "ops/comm/groups/arguments.h"

namespace narrowcast::collectives {

// The channel on which ranks tell each other what they are about to exchange: tags, and the headers of operators' calls
// (collectives/all_reduce/operator/announced_call.h). Jobs that send them do not use the exact elements' channels, of
// which it is one.
inline constexpr int64_t kHeaderChannel = engine::Transport::kChannels - 1;

// The backward pass in which a rank is, as the tag is sent. All ranks of a job have the same byte order. A tag is as
// long as a CallHeader and uses the same channel, so that a rank which mixes both up reads a wrong mark.
struct PassTag {
  static constexpr int64_t kMark = 0x6E63706173730001;

  int64_t mark = kMark;
  int64_t model = 0;   // The place of the model among those that were wrapped for the group, from 1.
  int64_t pass = 0;    // The forward passes of this model that computed gradients, this one included.
  int64_t bucket = 0;  // The bucket that is to be sent next, from 1; 0: none yet.
  std::array<uint8_t, kRefusalBytes> refusal{};  // Why this rank does not run the pass (write_refusal).
};

// Throws unless all ranks run the same pass, the same error on all ranks. `tags`: by rank.
//  - c10::DistBackendError names the first rank that sent something else than a tag.
//  - c10::ValueError or c10::TypeError is the refusal of the first rank that has one.
//  - c10::ValueError names rank 0, the first rank in another pass, and the model, pass and bucket of both.
void check_same_pass(int64_t rank, const std::vector<PassTag>& tags);

// The exchange of tags on an engine. Each rank sends its tag to all others, and waits for theirs.
// start:  sends the tag.
// finish: waits for all tags and throws what check_same_pass does. Then the engine refuses all later jobs, so that
//         nothing of the pass is sent. If all ranks refuse, no rank submits anything of the pass: then the exchange
//         does not fail, and the group remains usable.
class PassTagJob final : public engine::Job {
 public:
  PassTagJob(const PassTag& own, int64_t rank, int64_t world_size);

  std::string name() const override;
  void start(engine::Transport& transport) override;
  int64_t advances() const override { return 0; }
  bool lets_next_start() const override { return false; }
  at::Tensor finish(engine::Transport& transport) override;

  // By rank, once the exchange is over.
  std::vector<PassTag> tags() const;

 private:
  at::Tensor row(int64_t rank) const;

  const PassTag own_;
  const int64_t rank_;
  const int64_t world_size_;
  const at::Tensor rows_;  // uint8 [W * sizeof(PassTag)], by rank.
  std::vector<int64_t> receives_;
};

// The tags of one model, on the engine of its group.
class NARROWCAST_EXPORT PassTags {
 public:
  using Future = c10::intrusive_ptr<c10::ivalue::Future>;

  // All ranks make one for their next model of `group`, in the same order. c10::ValueError if the group has no backend
  // for CPU tensors.
  explicit PassTags(const c10::intrusive_ptr<c10d::ProcessGroup>& group);
  ~PassTags();
  PassTags(const PassTags&) = delete;
  PassTags& operator=(const PassTags&) = delete;

  // Whether the group has other models now.
  bool has_company() const;

  // Exchanges the tag of the backward pass with that number. The future fails as PassTagJob says.
  Future compare(int64_t pass) const;

  // Notes that buckets of this model are sent from now on, or no longer. Both happen at the same place in the order of
  // exchanges on all ranks.
  void begin_buckets() const;
  void end_buckets() const;

  // Exchanges the tag of the next bucket, whose index is given, if this model and another one send buckets now. Else
  // returns null: the order of one model's buckets does not depend on the rank.
  Future compare_bucket(int64_t pass, int64_t index) const;

  // Takes the place of compare() on a rank that cannot run the pass. Waits until all ranks have begun to compare, and
  // throws a c10::ValueError with `reason` on all of them.
  [[noreturn]] void refuse(int64_t pass, const std::string& reason) const;

 private:
  struct Models;
  static std::shared_ptr<Models> models_of(const c10::intrusive_ptr<c10d::ProcessGroup>& group);
  PassTag tag_of(int64_t pass) const;
  std::shared_ptr<PassTagJob> make_job(const PassTag& tag) const;

  const int64_t rank_;
  const int64_t world_size_;
  const std::shared_ptr<engine::Engine> engine_;
  const std::shared_ptr<Models> models_;  // The group's.
  const int64_t model_;
};

}  // namespace narrowcast::collectives
