// Tags with which ranks detect that they do not average the gradients of the same backward pass.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <narrowcast/export.h>
#include "ops/comm/engine/engine.h"
#include "ops/comm/groups/announcement_exchange.h"

namespace narrowcast::collectives {

// The exchange of tags on an engine. A tag is an announcement whose call is the rank's present backward pass, or the
// bucket that it sends next: "backward pass 7 of model 1", "bucket 2 of backward pass 7 of model 1". All numbers count
// from 1: models in the order in which they were wrapped for the group, passes by the forward passes of the model that
// computed gradients, and buckets in the order of a pass.
//
// start:  sends the tag.
// finish: waits for all tags and checks them. If that throws, the engine refuses all later jobs, so that no data of the
//         pass are sent. If all ranks refuse, no rank submits data of the pass. Then the exchange does not fail, and
//         the group remains usable.
class PassTagJob final : public engine::Job {
 public:
  PassTagJob(const Announcement& own, int64_t rank, int64_t world_size);

  std::string name() const override;
  void start(engine::Transport& transport) override;
  int64_t advances() const override { return 0; }
  bool lets_next_start() const override { return false; }
  at::Tensor finish(engine::Transport& transport) override;

  // After the exchange: throws unless all ranks run the same pass (check_announcements).
  void check() const;

 private:
  const std::string pass_;
  const int64_t rank_;
  AnnouncementExchange tags_;
};

// The tags of one model, on the engine of its group.
class NARROWCAST_EXPORT PassTags {
 public:
  using Future = c10::intrusive_ptr<c10::ivalue::Future>;

  // All ranks create one for their next model of `group`, in the same order. c10::ValueError if the group has no
  // backend for CPU tensors.
  explicit PassTags(const c10::intrusive_ptr<c10d::ProcessGroup>& group);
  ~PassTags();
  PassTags(const PassTags&) = delete;
  PassTags& operator=(const PassTags&) = delete;

  // Whether the group has other models at present.
  bool has_company() const;

  // Exchanges the tag of the backward pass with that number. The future fails as described at PassTagJob.
  Future compare(int64_t pass) const;

  // Notes that buckets of this model are sent from now on, or no longer. All ranks call each at the same place in the
  // order of exchanges.
  void begin_buckets() const;
  void end_buckets() const;

  // Exchanges the tag of the next bucket, `index`, if this model and another one send buckets at present. Else returns
  // null: the order of one model's buckets does not depend on the rank.
  Future compare_bucket(int64_t pass, int64_t index) const;

  // Replaces compare() on a rank that cannot run the pass. Waits until all ranks have begun to compare, and throws a
  // c10::ValueError with `reason` on all of them.
  [[noreturn]] void refuse(int64_t pass, const std::string& reason) const;

 private:
  struct Models;
  static std::shared_ptr<Models> models_of(const c10::intrusive_ptr<c10d::ProcessGroup>& group);
  std::string text_of_pass(int64_t pass) const;
  std::shared_ptr<PassTagJob> make_job(const Announcement& tag) const;

  const int64_t rank_;
  const int64_t world_size_;
  const std::shared_ptr<engine::Engine> engine_;
  const std::shared_ptr<Models> models_;  // The group's.
  const int64_t model_;
};

}  // namespace narrowcast::collectives
