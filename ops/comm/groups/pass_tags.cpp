#include "ops/comm/groups/pass_tags.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <set>

#include "ops/common/per_group.h"

namespace narrowcast::collectives {
PassTagJob::PassTagJob(const Announcement& own, int64_t rank, int64_t world_size)
    : pass_(own.call), rank_(rank), tags_(rank, world_size) {
  tags_.set_own(own);
}

std::string PassTagJob::name() const { return "the start of " + pass_; }

void PassTagJob::check() const { check_announcements(rank_, pass_, tags_.messages()); }

void PassTagJob::start(engine::Transport& transport) { tags_.start(transport); }

at::Tensor PassTagJob::finish(engine::Transport& transport) {
  tags_.wait(transport);
  const auto messages = tags_.messages();
  if (!std::all_of(messages.begin(), messages.end(), has_refusal)) {
    check();
  }
  return {};
}

// The models of a group.
struct PassTags::Models {
  std::atomic<int64_t> made{0};
  std::atomic<int64_t> alive{0};
  std::mutex mutex;
  std::set<int64_t> sending;  // Models whose buckets are being sent. Guarded by the mutex.
};

std::shared_ptr<PassTags::Models> PassTags::models_of(const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
  static PerGroup<Models> models;
  return models.of(group);
}

PassTags::PassTags(const c10::intrusive_ptr<c10d::ProcessGroup>& group)
    : rank_(group->getRank()),
      world_size_(group->getSize()),
      engine_(engine::Engine::for_group(group)),
      models_(models_of(group)),
      model_(++models_->made) {
  ++models_->alive;
}

PassTags::~PassTags() {
  end_buckets();
  --models_->alive;
}

bool PassTags::has_company() const { return models_->alive > 1; }

std::string PassTags::text_of_pass(int64_t pass) const {
  return c10::str("backward pass ", pass, " of model ", model_);
}

std::shared_ptr<PassTagJob> PassTags::make_job(const Announcement& tag) const {
  return std::make_shared<PassTagJob>(tag, rank_, world_size_);
}

PassTags::Future PassTags::compare(int64_t pass) const {
  return engine_->submit(make_job({.call = text_of_pass(pass)}));
}

void PassTags::begin_buckets() const {
  const std::lock_guard<std::mutex> lock(models_->mutex);
  models_->sending.insert(model_);
}

void PassTags::end_buckets() const {
  const std::lock_guard<std::mutex> lock(models_->mutex);
  models_->sending.erase(model_);
}

PassTags::Future PassTags::compare_bucket(int64_t pass, int64_t index) const {
  {
    const std::lock_guard<std::mutex> lock(models_->mutex);
    if (!models_->sending.contains(model_) || models_->sending.size() == 1) {
      return {};
    }
  }
  return engine_->submit(make_job({.call = c10::str("bucket ", index + 1, " of ", text_of_pass(pass))}));
}

void PassTags::refuse(int64_t pass, const std::string& reason) const {
  const Refusal refusal{.wrong_type = false, .reason = reason};
  refuse_together(refusal, [&] {
    const auto job = make_job({.call = text_of_pass(pass), .refusal = refusal});
    engine_->submit(job)->waitAndThrow();
    job->check();
  });
}

}  // namespace narrowcast::collectives
