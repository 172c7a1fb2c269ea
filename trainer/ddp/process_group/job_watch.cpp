#include "trainer/ddp/process_group/job_watch.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <system_error>
#include <typeinfo>
#include <utility>

#include <narrowcast/network_errors.h>
#include "ops/comm/groups/broken_groups.h"
#include "ops/common/error_message.h"

namespace narrowcast {
namespace {

// Whether NCCL, CUDA, Gloo or LibTorch may throw this error when a collective is aborted. They do not throw errors that
// name an argument, a file or memory.
bool may_follow_from_a_loss(const std::exception& error) {
  const bool is_of_network = dynamic_cast<const c10::DistError*>(&error) != nullptr;
  const bool is_of_gpu = dynamic_cast<const c10::AcceleratorError*>(&error) != nullptr;
  const bool is_plain = typeid(error) == typeid(c10::Error);
  const bool is_of_gloo = dynamic_cast<const std::runtime_error*>(&error) != nullptr &&
                          dynamic_cast<const std::system_error*>(&error) == nullptr;  // errors of files
  return is_of_network || is_of_gpu || is_plain || is_of_gloo;
}

bool is_replaced(const JobWatch::Options& options, int64_t lost) {
  try {
    return options.replaces_silent && options.replaces_silent(lost);
  } catch (const std::exception&) {
    return false;  // The launcher's store is gone.
  }
}

}  // namespace

JobWatch::JobWatch(ProcessGroupPtr group, const Options& options) : group_(std::move(group)), options_(options) {
  const int64_t rank = group_->getRank();
  RankWatch::Options of_ranks = {.rank = rank, .world_size = group_->getSize(), .look_every = options.look_every};
  if (options.breaks_off) {
    losses_ = with_network_errors(rank, "beginning to watch other ranks", [&] {
      return std::make_unique<LossWatch>(
          group_->getBackend(c10::DeviceType::CPU), [group = group_, rank](int64_t lost, const std::string& how) {
            collectives::break_off(group, c10::str("rank ", rank, ": rank ", lost, " is lost: ", how));
          });
    });
    of_ranks.watched = losses_->next();
    of_ranks.silence = options.silence;
    if (options.replaces_silent) {
      // All ranks call on_silence: whoever asks the launcher gives no sign meanwhile, and would seem to be lost as
      // well.
      of_ranks.on_all_ranks = true;
      of_ranks.rank_0_serves = options.rank_0_serves;
      of_ranks.on_silence = [group = group_, rank, options](int64_t lost) {
        if (!is_replaced(options, lost)) {
          collectives::break_off(group, text_of_silence({rank, lost}, options.silence));
        }
      };
    } else {
      of_ranks.on_silence = [find_loss = losses_->on_silence(options.silence)](int64_t /*next*/) { find_loss(); };
    }
  } else if (options.on_silence && options.silence.count() > 0) {
    of_ranks.watched = (rank + 1) % group_->getSize();
    of_ranks.silence = options.silence;
    of_ranks.on_all_ranks = true;
    of_ranks.rank_0_serves = options.rank_0_serves;
    of_ranks.on_silence = [rank, options](int64_t lost) {
      if (!is_replaced(options, lost)) {
        options.on_silence(text_of_silence({rank, lost}, options.silence));
      }
    };
  }
  ranks_ = std::make_unique<RankWatch>(group_->getStore(), of_ranks);
}

// The end message must be sent before heartbeats end.
JobWatch::~JobWatch() {
  losses_.reset();
  ranks_.reset();
}

void JobWatch::throw_if_broken_off() const {
  if (losses_ == nullptr) {
    return;
  }
  const std::string why = collectives::why_broken_off(group_);
  TORCH_CHECK_WITH(DistBackendError, why.empty(), why);
  const std::string failure = collectives::failure_in_backends(group_);
  TORCH_CHECK_WITH(DistBackendError, failure.empty(), "rank ", group_->getRank(), ": ", failure, "; ",
                   ranks_->describe_others());
}

void JobWatch::throw_explained(const std::exception& error) const {
  if (losses_ != nullptr && may_follow_from_a_loss(error)) {
    if (dynamic_cast<const c10::DistError*>(&error) != nullptr) {
      losses_->wait_for_loss(options_.settling);  // A backend may notice first, without knowing the rank.
    }
    throw_if_broken_off();
  }
  if (options_.on_silence && losses_ == nullptr && may_follow_from_a_loss(error)) {
    const std::optional<int64_t> lost = ranks_->silent_rank();  // Other ranks may have ended because of it.
    TORCH_CHECK_WITH(DistBackendError, !lost.has_value(),
                     text_of_silence({group_->getRank(), lost.value_or(0)}, options_.silence));
  }
  TORCH_CHECK_WITH(DistBackendError, !is_time_out(error), error_message(error), "; ", ranks_->describe_others());
}

}  // namespace narrowcast
