// What narrowcast-bench measures, without a model: the link between the ranks, the time that hooks take for buckets,
// and how exact their means are. kernel_rates.h has the kernels of the wire formats.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <vector>

#include <narrowcast/hook_options.h>
#include <narrowcast/process_group.h>
#include "ops/comm/link/link.h"
#include "trainer/train/bench/results.h"

namespace narrowcast::bench {

// More than the group's own measurement (collectives::find_link) takes: it is what the tables are compared with. The
// first message is far above what queues and token buckets take at once.
inline constexpr collectives::LinkEffort kLinkEffort{.pings = 100,
                                                     .messages = 7,
                                                     .message_seconds = 0.25,
                                                     .least_bytes = int64_t{4} << 20,
                                                     .most_bytes = int64_t{64} << 20};

// The same between GPUs.
inline constexpr collectives::LinkEffort kGpuLinkEffort{.pings = 100,
                                                        .messages = 7,
                                                        .message_seconds = 0.05,
                                                        .least_bytes = int64_t{4} << 20,
                                                        .most_bytes = int64_t{256} << 20};

// A collective over 2 ranks or more, in which rank r sends to rank r + 1 (the last one to rank 0): on the group's CPU
// backend collectives::measure_link, on that of another `device` measure_link_on_stream. Throws c10::DistBackendError
// if a peer fails.
LinkRate measure_link(const ProcessGroupPtr& group, const collectives::LinkEffort& effort = kLinkEffort,
                      at::Device device = at::kCPU);

// What a hook of that name is made with: of the options those that it takes.
hooks::HookOptions options_of(const std::string& hook, const ProcessGroupPtr& group, const hooks::WireOptions& wire);

// One case: all hooks, in alternation.
struct HookWorkload {
  std::vector<std::string> hooks = {};
  int64_t numel = 0;    // float32 elements of a bucket
  int64_t buckets = 1;  // in flight at once
  int64_t warmup_iterations = 0;
  int64_t iterations = 1;
  std::vector<int64_t> nodes = {};  // the number of each rank's node, by rank
  hooks::WireOptions wire = {};
  at::Device device = at::kCPU;  // of the buckets
};

// What one case gave.
struct HookTimes {
  std::vector<HookTime> times = {};  // in the order of the hooks
  int64_t payload_bytes_sent = 0;    // by this rank, warm-up included
};

// A collective. In each iteration every hook has its turn (another one begins each time): all ranks start together with
// fresh gradients, run the hook on all buckets, and wait for all of them. On a GPU they start together on its stream,
// where events enclose the exchange. Throws c10::ValueError if `nodes` is not as
// long as the group is large, c10::DistBackendError if a peer fails, and what the hooks throw.
HookTimes measure_hooks(const ProcessGroupPtr& group, const HookWorkload& workload);

// What one size of bucket gave.
struct Exactness {
  std::vector<HookExactness> hooks = {};  // in the order of the names
  int64_t payload_bytes_sent = 0;         // by this rank
};

// A collective. Each hook of these names averages one bucket of `numel` gradients, drawn anew on each rank, and every
// element is compared with the exact mean: the ranks' gradients summed in float64 by an all-reduce, over their number.
// The tolerance is the one that the hook's row derives from the gradients (error_terms), summed over the ranks by an
// all-reduce. The worst rank counts. Hooks that approximate are left out: their mean of one step is not meant to be
// exact. All is on `device`, and takes about 10 float64 tensors of `numel` elements there. Throws c10::DistBackendError
// if a peer fails, and what the hooks throw.
Exactness measure_exactness(const ProcessGroupPtr& group, const std::vector<std::string>& names, int64_t numel,
                            const hooks::WireOptions& wire = {}, at::Device device = at::kCPU);

}  // namespace narrowcast::bench
