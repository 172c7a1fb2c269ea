#include "ops/comm/groups/pass_tags.h"

#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <optional>
#include <set>
#include <type_traits>

#include "ops/comm/node/find_nodes.h"
#include "ops/common/backend_errors.h"

namespace narrowcast::collectives {
namespace {

constexpr auto kTagBytes = static_cast<int64_t>(sizeof(PassTag));

static_assert(std::is_trivially_copyable_v<PassTag> && std::has_unique_object_representations_v<PassTag>);

std::string text_of_pass(const PassTag& tag) {
  const std::string bucket = tag.bucket > 0 ? c10::str("bucket ", tag.bucket, " of ") : "";
  return c10::str(bucket, "backward pass ", tag.pass, " of model ", tag.model);
}

bool are_equal(const PassTag& a, const PassTag& b) {
  return a.model == b.model && a.pass == b.pass && a.bucket == b.bucket;
}

}  // namespace

void check_same_pass(int64_t rank, const std::vector<PassTag>& tags) {
  for (size_t sender = 0; sender < tags.size(); ++sender) {
    if (tags[sender].mark != PassTag::kMark) {
      throw_backend_error(
          rank, "a backward pass",
          c10::str("rank ", sender, " called another collective, or has a narrowcast of another version"));
    }
  }
  for (size_t sender = 0; sender < tags.size(); ++sender) {
    const auto refusal = read_refusal(tags[sender].refusal.data());
    if (refusal.has_value()) {
      throw_refusal(*refusal, text_of_pass(tags[sender]), static_cast<int64_t>(sender));
    }
  }
  for (size_t other = 1; other < tags.size(); ++other) {
    TORCH_CHECK_VALUE(are_equal(tags[other], tags[0]), "ranks do not run the same backward pass: rank 0 is in ",
                      text_of_pass(tags[0]), ", rank ", other, " in ", text_of_pass(tags[other]),
                      ". Models count in the order in which they were wrapped for the group, passes are forward passes "
                      "that computed gradients; all ranks must run the same ones in the same order");
  }
}

PassTagJob::PassTagJob(const PassTag& own, int64_t rank, int64_t world_size)
    : own_(own), rank_(rank), world_size_(world_size), rows_(at::zeros({world_size * kTagBytes}, at::kByte)) {
  std::memcpy(row(rank_).mutable_data_ptr(), &own_, sizeof(own_));
}

std::string PassTagJob::name() const { return "the start of " + text_of_pass(own_); }

at::Tensor PassTagJob::row(int64_t rank) const { return rows_.narrow(0, rank * kTagBytes, kTagBytes); }

std::vector<PassTag> PassTagJob::tags() const {
  std::vector<PassTag> tags(static_cast<size_t>(world_size_));
  std::memcpy(tags.data(), rows_.const_data_ptr(), rows_.nbytes());
  return tags;
}

void PassTagJob::start(engine::Transport& transport) {
  receives_.clear();
  for (int64_t distance = 1; distance < world_size_; ++distance) {
    const int64_t peer = transport.peer_before(distance);
    receives_.push_back(transport.post_receive({row(peer), peer, kHeaderChannel}));
  }
  for (int64_t distance = 1; distance < world_size_; ++distance) {
    transport.send({row(rank_), transport.peer_after(distance), kHeaderChannel});
  }
}

at::Tensor PassTagJob::finish(engine::Transport& transport) {
  for (const int64_t receive : receives_) {
    transport.wait_receive(receive);
  }
  const std::vector<PassTag> all = tags();
  const bool all_refuse = std::all_of(all.begin(), all.end(), [](const PassTag& tag) {
    return tag.mark == PassTag::kMark && read_refusal(tag.refusal.data()).has_value();
  });
  if (!all_refuse) {
    check_same_pass(rank_, all);
  }
  return {};
}

// The models of a group.
struct PassTags::Models {
  std::atomic<int64_t> made{0};
  std::atomic<int64_t> alive{0};
  std::mutex mutex;
  std::set<int64_t> sending;  // Those whose buckets are sent. Guarded by the mutex.
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

PassTag PassTags::tag_of(int64_t pass) const {
  PassTag tag;
  tag.model = model_;
  tag.pass = pass;
  return tag;
}

std::shared_ptr<PassTagJob> PassTags::make_job(const PassTag& tag) const {
  return std::make_shared<PassTagJob>(tag, rank_, world_size_);
}

PassTags::Future PassTags::compare(int64_t pass) const { return engine_->submit(make_job(tag_of(pass))); }

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
  PassTag tag = tag_of(pass);
  tag.bucket = index + 1;
  return engine_->submit(make_job(tag));
}

void PassTags::refuse(int64_t pass, const std::string& reason) const {
  const Refusal refusal{.wrong_type = false, .reason = reason};
  PassTag tag = tag_of(pass);
  write_refusal(refusal, tag.refusal.data());
  refuse_together(refusal, [&] {
    const auto job = make_job(tag);
    engine_->submit(job)->waitAndThrow();
    check_same_pass(rank_, job->tags());
  });
}

}  // namespace narrowcast::collectives
