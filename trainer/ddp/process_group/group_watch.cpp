#include "trainer/ddp/process_group/group_watch.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <random>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <vector>

#include <narrowcast/worker_env.h>
#include "ops/comm/groups/agree.h"
#include "ops/comm/groups/group.h"
#include "ops/common/backend_timeout.h"
#include "ops/common/per_group.h"
#include "trainer/ddp/backends/gloo_backend.h"
#include "trainer/ddp/backends/group_backend.h"

namespace narrowcast {
namespace {

using std::chrono::milliseconds;

// A group's latest watch, which its users own.
struct LatestWatch {
  std::mutex mutex;
  milliseconds silence{0};
  std::weak_ptr<GroupWatch> watch = {};
};

LatestWatch& latest_watch(const ProcessGroupPtr& group) {
  static PerGroup<LatestWatch> latest;
  return *latest.of(group);
}

// The heartbeat timeout in this group; 0: never.
milliseconds silence_in(const ProcessGroupPtr& group, milliseconds silence) {
  const milliseconds shorter = std::min(silence, timeout_of(*group->getBackend(c10::DeviceType::CPU)));
  return shorter < RankWatch::kLeastSilence ? milliseconds(0) : shorter;
}

// PyTorch's rule: its launcher serves the store if it sets this variable, else the first rank of all.
bool rank_0_serves_store(c10d::Backend& backend) {
  const EnvironmentVariables variables = process_environment();
  const auto found = variables.find("TORCHELASTIC_USE_AGENT_STORE");
  const auto ranks = backend.getBackendOptions()->global_ranks_in_group;
  return (found == variables.end() || found->second != "True") && (ranks.empty() || ranks.front() == 0);
}

RankWatch::Options watch_options(const ProcessGroupPtr& group, const std::shared_ptr<engine::Engine>& engine,
                                 const GroupWatch::Options& options) {
  const int64_t rank = group->getRank();
  const auto backend = group->getBackend(c10::DeviceType::CPU);
  // The thread of a watch whose store hangs is left behind, and must not keep the engine.
  const auto on_silence = [rank, backend, options, weak = std::weak_ptr<engine::Engine>(engine)](int64_t lost) {
    const std::string why = text_of_silence({rank, lost}, options.silence);
    if (const auto running = weak.lock()) {
      running->break_off(why);
    }
    options.on_loss(why);
    close_gloo_connections(*backend);
  };
  return {.rank = rank,
          .world_size = group->getSize(),
          .look_every = options.look_every,
          .watched = (rank + 1) % group->getSize(),
          .silence = options.silence,
          .on_silence = on_silence,
          .on_all_ranks = true,
          .rank_0_serves = rank_0_serves_store(*backend)};
}

}  // namespace

bool GroupWatch::is_possible(const ProcessGroupPtr& group, c10::DeviceType device) {
  return std::ranges::all_of(std::array{c10::DeviceType::CPU, device}, [&](c10::DeviceType type) {
    return collectives::moves_tensors_on(type, group) && group->getBackend(type)->getBackendName() == "gloo";
  });
}

void GroupWatch::end_together(const ProcessGroupPtr& group, const ProcessGroupPtr& other) {
  if (!collectives::moves_tensors_on(at::kCPU, other)) {
    return;
  }
  const auto own = group->getBackend(c10::DeviceType::CPU);
  const auto backend = other->getBackend(c10::DeviceType::CPU);
  if (backend != own && backend->getBackendName() == kGlooBackend) {
    close_together(own, backend);
  }
}

std::shared_ptr<GroupWatch> GroupWatch::of_group(const ProcessGroupPtr& group, const Options& given) {
  if (group->getSize() == 1) {
    return nullptr;
  }
  Options options = given;
  options.silence = given.silence.count() == 0 ? given.silence : silence_in(group, given.silence);
  LatestWatch& latest = latest_watch(group);
  const std::lock_guard<std::mutex> lock(latest.mutex);
  std::shared_ptr<GroupWatch> shared = latest.silence == options.silence ? latest.watch.lock() : nullptr;
  // The users of a watch end at different times on different ranks.
  const collectives::Announcement own = {
      .call = "watching other ranks",
      .entries = {{"silence_seconds", c10::str(static_cast<double>(given.silence.count()) / 1000)}},
      .numbers = {shared == nullptr ? 0 : 1, static_cast<int64_t>(std::random_device()())}};
  const std::vector<collectives::Announcement> all = collectives::agree(group, own);
  const bool is_shared = std::ranges::all_of(all, [](const auto& each) { return each.numbers.at(0) == 1; });
  if (is_shared || options.silence.count() == 0) {
    return shared;
  }
  // The store may be older than the group, and may have another watch's keys.
  const auto store = c10::make_intrusive<c10d::PrefixStore>(c10::str("narrowcast/watch/", all.front().numbers.at(1)),
                                                            group->getStore());
  shared = std::make_shared<GroupWatch>(group, store, options);
  latest.silence = options.silence;
  latest.watch = shared;
  return shared;
}

GroupWatch::GroupWatch(const ProcessGroupPtr& group, const c10::intrusive_ptr<c10d::Store>& store,
                       const Options& options)
    : rank_(group->getRank()),
      silence_(options.silence),
      engine_(engine::Engine::for_group(group)),
      ranks_(store, watch_options(group, engine_, options)) {}

void GroupWatch::throw_explained(const std::exception& error) const {
  if (dynamic_cast<const c10::DistError*>(&error) == nullptr) {
    return;
  }
  const auto lost = ranks_.silent_rank();
  TORCH_CHECK_WITH(DistBackendError, !lost.has_value(), text_of_silence({rank_, lost.value_or(0)}, silence_));
}

}  // namespace narrowcast
