// The measurements of narrowcast-bench: the link between the ranks, the time that hooks take for buckets, and the
// exactness of their means. They need no model. kernel_rates.h measures the kernels of the wire formats.
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

// More effort than the group's own measurement (collectives::find_link), since the tables are compared with the result.
// The first message is far larger than queues and token buckets accept at once.
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

// A collective over 2 ranks or more, in which rank r sends to rank r + 1, and the last rank to rank 0. The group's CPU
// backend is measured by collectives::measure_link, the backend of another `device` by measure_link_on_stream. Throws
// c10::DistBackendError if a peer fails.
LinkRate measure_link(const ProcessGroupPtr& group, const collectives::LinkEffort& effort = kLinkEffort,
                      at::Device device = at::kCPU);

// The options with which the hook of that name is made: those in `wire` that it takes.
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

// The results of one case.
struct HookTimes {
  std::vector<HookTime> times = {};  // in the order of the hooks
  int64_t payload_bytes_sent = 0;    // by this rank, warm-up included
};

// A collective. In each iteration every hook has its turn, beginning with a different one each time. All ranks start a
// turn together with fresh gradients, run the hook on all buckets, and wait for all of them. On a GPU they start
// together on its stream, and events before and after the exchange measure its time. Throws c10::ValueError if the
// length of `nodes` is not the group's size, c10::DistBackendError if a peer fails, and the hooks' errors.
HookTimes measure_hooks(const ProcessGroupPtr& group, const HookWorkload& workload);

// The results of one size of bucket.
struct Exactness {
  std::vector<HookExactness> hooks = {};  // in the order of the names
  int64_t payload_bytes_sent = 0;         // by this rank
};

// A collective. Each hook of these names averages one bucket of `numel` gradients, which each rank draws anew, and
// every element is compared with the exact mean. The exact mean is the sum of the ranks' gradients, all-reduced in
// float64, divided by the number of ranks. The tolerance is the error bound that the hook's row derives from the
// gradients (error_terms), all-reduced to a sum over the ranks. The result is the worst rank's. Hooks that approximate
// are left out: the mean of a single step is not meant to be exact. All tensors are on `device`; they take about as
// much memory as 10 float64 tensors of `numel` elements. Throws c10::DistBackendError if a peer fails, and the hooks'
// errors.
Exactness measure_exactness(const ProcessGroupPtr& group, const std::vector<std::string>& names, int64_t numel,
                            const hooks::WireOptions& wire = {}, at::Device device = at::kCPU);

}  // namespace narrowcast::bench
