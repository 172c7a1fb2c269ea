#include "trainer/ddp/reducer/pass_check.h"

#include <atomic>
#include <chrono>
#include <utility>

#include <narrowcast/network_errors.h>
#include "ops/comm/groups/group.h"
#include "ops/comm/groups/pass_tags.h"

namespace narrowcast {
namespace {

bool can_compare(const std::vector<NamedTensor>& trainable, const ProcessGroupPtr& group) {
  return group->getSize() > 1 && collectives::moves_cpu_tensors(group) && trainable.at(0).tensor.is_cpu();
}

}  // namespace

// Shared by a PassCheck and its hooks on the parameters.
struct PassCheck::State {
  explicit State(const ProcessGroupPtr& group) : rank(group->getRank()), tags(group) {}

  const int64_t rank;
  const collectives::PassTags tags;
  std::atomic<int64_t> armed = 0;  // The pass that begins with the next gradient; 0: none.
  int64_t pass = 0;                // The pass that began last.
  bool sees_buckets = false;
  double last_wait_seconds = 0;                        // Wait after the latest gradient.
  double waited_seconds = 0;                           // Waits before the latest gradient.
  c10::intrusive_ptr<c10::ivalue::Future> equal = {};  // Result of the comparison, until the first bucket waits for it.

  // This function and the following ones are called on the thread of a backward pass.
  void notice_gradient() {
    waited_seconds += std::exchange(last_wait_seconds, 0);
    if (armed.load(std::memory_order_relaxed) == 0) {
      return;
    }
    const int64_t number = armed.exchange(0);
    if (number != 0) {
      begin(number);
    }
  }

  void begin(int64_t number) {
    pass = number;
    equal = tags.compare(pass);
    if (!sees_buckets || tags.has_company()) {
      wait_until_equal();
    }
    if (sees_buckets) {
      tags.begin_buckets();
    }
  }

  void wait_until_equal() {
    if (equal == nullptr) {
      return;
    }
    const auto begin = std::chrono::steady_clock::now();
    std::exchange(equal, nullptr)->waitAndThrow();
    last_wait_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

  void before_bucket(const c10d::GradBucket& bucket) {
    wait_until_equal();
    if (const auto same_bucket = tags.compare_bucket(pass, static_cast<int64_t>(bucket.getIndex()))) {
      same_bucket->waitAndThrow();
    }
    if (bucket.isLast()) {
      tags.end_buckets();
    }
  }
};

PassCheck::PassCheck(const std::vector<NamedTensor>& trainable, const ProcessGroupPtr& group) {
  if (can_compare(trainable, group)) {
    state_ = std::make_shared<State>(group);
    hooks_ = std::make_unique<AccumulatorHooks>(tensors_of(trainable),
                                                [state = state_](size_t /*parameter*/) { state->notice_gradient(); });
  }
}

PassCheck::~PassCheck() = default;

std::function<void(const c10d::GradBucket&)> PassCheck::bucket_check() const {
  if (state_ == nullptr) {
    return nullptr;
  }
  state_->sees_buckets = true;
  return [state = state_](const c10d::GradBucket& bucket) { state->before_bucket(bucket); };
}

void PassCheck::count() { ++pass_; }

void PassCheck::compare() const {
  if (state_ != nullptr) {
    const StepScope scope(state_->rank, "the start of a forward pass");
    state_->tags.compare(pass_)->waitAndThrow();
  }
}

void PassCheck::arm() {
  if (state_ != nullptr) {
    state_->armed = pass_;
  }
}

double PassCheck::take_waited_seconds() {
  if (state_ == nullptr) {
    return 0;
  }
  state_->last_wait_seconds = 0;
  return std::exchange(state_->waited_seconds, 0);
}

void PassCheck::refuse(const std::string& reason) const {
  if (state_ != nullptr) {
    const StepScope scope(state_->rank, "the start of a backward pass");
    state_->tags.refuse(pass_, reason);
  }
}

}  // namespace narrowcast
