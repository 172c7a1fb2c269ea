#include "trainer/ddp/recovery/stop_agreement.h"

#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include <narrowcast/network_errors.h>
#include "ops/comm/groups/group.h"

namespace narrowcast::recovery {
namespace {

constexpr double kSecondsOfInterval = 0.5;  // A signal is noticed within two of them, or within two steps.
constexpr int64_t kLongestInterval = 4096;  // steps
constexpr const char* kAgreement = "agreement whether to stop";

}  // namespace

int64_t next_interval(int64_t interval, double seconds_per_step) {
  const double steps = seconds_per_step > 0 ? std::floor(kSecondsOfInterval / seconds_per_step) : kLongestInterval;
  const int64_t most = std::min(kLongestInterval, 2 * interval);
  return static_cast<int64_t>(std::clamp(steps, 1.0, static_cast<double>(most)));
}

StopAgreement::StopAgreement(ProcessGroupPtr group, Asked asked)
    : group_(std::move(group)), asked_(std::move(asked)), began_(Clock::now()) {}

int StopAgreement::before_first_step() {
  if (!asked_ || is_alone()) {
    return asked_ ? asked_() : 0;
  }
  begin();
  return read();
}

int StopAgreement::after_step() {
  if (!asked_ || is_alone()) {
    return asked_ ? asked_() : 0;
  }
  if (++steps_ < interval_) {
    return 0;
  }
  const int signal = read();
  if (signal == 0) {
    begin();
  }
  return signal;
}

int StopAgreement::at_meeting() {
  if (!asked_ || is_alone()) {
    return asked_ ? asked_() : 0;
  }
  if (const int signal = read(); signal != 0) {
    return signal;
  }
  begin();
  return read();
}

void StopAgreement::begin() {
  const Clock::time_point now = Clock::now();
  const double seconds = std::chrono::duration<double>(now - std::exchange(began_, now)).count();
  const double seconds_per_step = seconds / static_cast<double>(std::max<int64_t>(1, std::exchange(steps_, 0)));
  round_ = {
      at::tensor({static_cast<double>(asked_()), seconds_per_step}, at::kDouble).to(collectives::any_device(group_))};
  c10d::AllreduceOptions options;
  options.reduceOp = c10d::ReduceOp::MAX;
  work_ = with_network_errors(group_->getRank(), kAgreement, [&] { return group_->allreduce(round_, options); });
}

// Returns the signal of the round in progress, 0 without a round.
int StopAgreement::read() {
  if (work_ == nullptr) {
    return 0;
  }
  with_network_errors(group_->getRank(), kAgreement, [&] { std::exchange(work_, nullptr)->wait(); });
  const at::Tensor greatest = round_[0].cpu();
  const double* const values = greatest.const_data_ptr<double>();
  interval_ = next_interval(interval_, values[1]);
  return static_cast<int>(values[0]);
}

}  // namespace narrowcast::recovery
