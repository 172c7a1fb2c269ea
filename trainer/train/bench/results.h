// The measurements of narrowcast-bench and numbers derived from them, also as JSON.
#pragma once

#include <c10/core/DeviceType.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "hooks/table/hook_table.h"
#include "ops/codec/wire_format.h"

namespace narrowcast::bench {

// The hook that all others are compared with.
inline constexpr const char* kReference = hooks::kAllReduceHook;

// The simplest choice of a hook: 16 bits of every gradient. The others are compared with it too.
inline constexpr const char* kBf16 = hooks::kBf16Hook;

// Point-to-point messages between neighbouring ranks.
struct LinkRate {
  double gbit_per_second = 0;      // slowest rank's rate while each rank sends to the next one, all at once
  int64_t message_bytes = 0;       // of the messages that were measured
  double round_trip_us = 0;        // of a small message, microseconds; between the two slowest neighbours
  int64_t payload_bytes_sent = 0;  // by this rank for this measurement
};

// Rates from memory to memory, in GB/s of the float32 that are read (encode) or written (decode).
struct FormatRates {
  WireFormat format;
  double encode = 0;
  double decode = 0;
};

// Rates of one thread of rank 0, or of its GPU.
struct KernelRates {
  c10::DeviceType device = c10::DeviceType::CPU;
  double memory = 0;  // GB/s: on the CPU of reading alone; on a GPU of a copy, read plus written bytes
  std::vector<FormatRates> formats = {};
};

// `rate`, GB/s of float32 in that format, as a share of KernelRates::memory. On the CPU only the float32 bytes count,
// as `memory` counts only bytes read. On a GPU the bytes of float32 and message count, as a copy reads and writes.
double share_of_memory(const KernelRates& kernels, WireFormat format, double rate);

// One hook in one case: a number of buckets of one size in flight at once.
struct HookTime {
  std::string hook = {};
  int64_t bucket_bytes = 0;  // of float32
  int64_t buckets = 0;
  std::vector<double> milliseconds = {};  // of the slowest rank, in each measured iteration
  int64_t payload_bytes = 0;              // sent by each rank in one iteration; the most of any rank
  int64_t payload_bytes_per_node = 0;     // sent by all ranks of a node together; the most of any node
  double median_ms = 0;
  std::string decision = {};  // CommHook::decision at the end; empty for hooks that choose nothing
};

// Error of one hook's mean of one bucket.
struct HookExactness {
  std::string hook = {};
  int64_t bucket_bytes = 0;           // of float32
  double squared_relative_error = 0;  // sum of squared differences over the sum of the exact mean's squares; of the
                                      // worst rank, infinity for a result that contains a NaN
  int64_t outside_tolerance = 0;      // elements further from the exact mean than the hook's bound; of the worst rank
  bool replicas_equal = false;        // whether all ranks end with the same bits
};

// All measurements of one run.
struct BenchResults {
  int64_t ranks = 0;
  std::string network = {};                       // between them, from network::describe_network
  c10::DeviceType device = c10::DeviceType::CPU;  // of the buckets
  std::vector<int64_t> ranks_per_node = {};       // by node, for any number of levels
  int64_t levels = 1;                             // 1, or 2 if hooks of wire formats average in two levels
  std::string connections = {};                   // with each peer on other nodes, and why; empty if not given
  std::string why_one_level = {};                 // if ranks of a node cannot share memory
  std::optional<LinkRate> link = {};
  std::optional<double> given_gbit = {};  // the link's rate as the user gave it
  std::optional<KernelRates> kernels = {};
  std::vector<HookTime> hooks = {};           // case by case, the reference hook first in each
  std::vector<HookExactness> exactness = {};  // size by size, in the same order; empty if not checked
  int64_t payload_bytes_sent = 0;             // by this rank in the whole run, including warm-up and check
  int64_t measuring_bytes_sent = 0;           // by this rank, for hooks to decide
};

// Whether the hook leaves all ranks with the mean of their inputs.
bool averages(const std::string& hook);

// The float32 elements of a bucket.
int64_t elements_of(int64_t bucket_bytes);

// The bytes of float32 that a case averages: the bytes of all buckets in flight.
double averaged_bytes(const HookTime& time);

// averaged_bytes over the median time, GB/s: the algorithm bandwidth of nccl-tests.
double algorithm_bandwidth(const HookTime& time);

// fp32-equivalent: algorithm_bandwidth * 2 (W - 1) / W with W ranks, GB/s, as nccl-tests defines the bus bandwidth of
// an all-reduce (its doc/PERFORMANCE.md). It is the rate at which a ring all-reduce of float32 would have to send to
// take that time. A hook that sends fewer bytes can exceed the network's bandwidth.
double bus_bandwidth(const HookTime& time, int64_t ranks);

// The payload of one rank over the median time, GB/s: the actual rate on the wire.
double wire_bandwidth(const HookTime& time);

// The minimum and the 0.99 quantile (statistics.h) of the measured iterations, of which there is at least one.
double min_ms(const HookTime& time);
double p99_ms(const HookTime& time);

// The time of another hook in the same case; nullptr if that was not measured.
const HookTime* same_case(const BenchResults& results, const HookTime& time, const std::string& hook);

// The speed-up of the hook of `time` over `reference` in the same case: 2 means half the time. Empty if `reference` was
// not measured.
std::optional<double> speed_up(const BenchResults& results, const HookTime& time, const std::string& reference);

// The share of the time that sending the payload alone takes on the link, at the rate that the user gave, else at the
// measured rate. Empty if neither rate is known.
std::optional<double> share_of_link(const BenchResults& results, const HookTime& time);

// The time of a hook as a function of size: latency + averaged_bytes / bandwidth.
struct HookFit {
  std::string hook = {};
  int64_t buckets = 0;
  int64_t sizes = 0;                         // number of measured sizes
  double latency_us = 0;                     // negative if the times grow faster than the sizes
  std::optional<double> gb_per_second = {};  // of float32; empty if larger sizes do not take longer
  double worst_residual = 0;                 // the largest |fitted - measured| / measured of the sizes
};

// For each number of buckets and each hook with at least three sizes: the fit of the median times, by fit_line with x =
// averaged_bytes. In the order of the results.
std::vector<HookFit> fit_hooks(const BenchResults& results);

// The results for other programs; docs/reference/bench.md lists the keys.

struct BenchOptions;

// An object with all measurements made with these options. Missing ones are absent; numbers that are not finite are
// null.
nlohmann::json to_json(const BenchOptions& options, const BenchResults& results);

}  // namespace narrowcast::bench
