// What narrowcast-bench has measured, the numbers that follow from it, and both as JSON and, in tables.cpp, for people.
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

// The hook that costs no thought: 16 bits of every gradient. The others are compared with it too.
inline constexpr const char* kBf16 = hooks::kBf16Hook;

// Point-to-point messages between neighbouring ranks.
struct LinkRate {
  double gbit_per_second = 0;      // each rank sends to the next one, all at once; of the slowest rank
  int64_t message_bytes = 0;       // of the messages behind it
  double round_trip_us = 0;        // of a small message, microseconds; between the slowest two of the neighbours
  int64_t payload_bytes_sent = 0;  // by this rank, to measure it
};

// From memory and back, in GB/s of float32 that are read (encode) or written (decode).
struct FormatRates {
  WireFormat format;
  double encode = 0;
  double decode = 0;
};

// What one thread of rank 0 reaches, or its GPU.
struct KernelRates {
  c10::DeviceType device = c10::DeviceType::CPU;
  double memory = 0;  // GB/s: on the CPU that are read and nothing else; on a GPU of a copy, read and written ones
  std::vector<FormatRates> formats = {};
};

// `rate`, GB/s of float32 in that format, as a part of KernelRates::memory: what moves only counts once on the CPU,
// where float32 are beside those that are read, and on a GPU float32 and message together are beside a copy.
double share_of_memory(const KernelRates& kernels, WireFormat format, double rate);

// One hook in one case: so many buckets of that size in flight at once.
struct HookTime {
  std::string hook = {};
  int64_t bucket_bytes = 0;  // of float32
  int64_t buckets = 0;
  std::vector<double> milliseconds = {};  // of the slowest rank, in each measured iteration
  int64_t payload_bytes = 0;              // that each rank sends in one iteration; the most of any rank
  int64_t payload_bytes_per_node = 0;     // that the ranks of a node send together; the most of any node
  double median_ms = 0;
  std::string decision = {};  // as CommHook::decision has it, at the end; empty for hooks that choose nothing
};

// How far one hook's mean of one bucket is from the exact one.
struct HookExactness {
  std::string hook = {};
  int64_t bucket_bytes = 0;           // of float32
  double squared_relative_error = 0;  // sum of squared differences over the sum of the exact mean's squares; of the
                                      // worst rank, infinity for a result that holds no numbers
  int64_t outside_tolerance = 0;      // elements that are further from the exact mean than the hook's bound; the same
  bool replicas_equal = false;        // all ranks end with the same bits
};

// Everything that one run has measured.
struct BenchResults {
  int64_t ranks = 0;
  std::string network = {};                       // between them, as network::describe_network has it
  c10::DeviceType device = c10::DeviceType::CPU;  // of the buckets
  std::vector<int64_t> ranks_per_node = {};       // by node, whatever the levels are
  int64_t levels = 1;                             // in which hooks of wire formats exchange over them
  std::string why_one_level = {};                 // where ranks of a node cannot share memory
  std::optional<LinkRate> link = {};
  std::optional<double> given_gbit = {};  // the link's rate as the user knows it
  std::optional<KernelRates> kernels = {};
  std::vector<HookTime> hooks = {};           // case by case, the reference hook first in each
  std::vector<HookExactness> exactness = {};  // size by size, in the same order; empty if it was not checked
  int64_t payload_bytes_sent = 0;             // by this rank in the whole run, warm-up and check included,
  int64_t measuring_bytes_sent = 0;           // and what hooks sent to decide
};

// Whether all ranks end with the mean of what they gave to this hook.
bool averages(const std::string& hook);

// The float32 elements of a bucket.
int64_t elements_of(int64_t bucket_bytes);

// The bytes of float32 that a case averages: of all buckets in flight.
double averaged_bytes(const HookTime& time);

// averaged_bytes over the median time, GB/s: what nccl-tests calls the algorithm bandwidth.
double algorithm_bandwidth(const HookTime& time);

// fp32-equivalent: algorithm_bandwidth * 2 (W - 1) / W with W ranks, GB/s, as nccl-tests defines the bus bandwidth of
// an all-reduce (its doc/PERFORMANCE.md): the rate at which a ring all-reduce of float32 would have to send to take
// that time. A hook that sends fewer bytes can be above what the network gives.
double bus_bandwidth(const HookTime& time, int64_t ranks);

// The payload of one rank over the median time, GB/s: what really travels.
double wire_bandwidth(const HookTime& time);

// Of the measured iterations, at least one: the shortest, and the 0.99 quantile (statistics.h).
double min_ms(const HookTime& time);
double p99_ms(const HookTime& time);

// The time of the case and another hook; nullptr if that was not measured.
const HookTime* same_case(const BenchResults& results, const HookTime& time, const std::string& hook);

// How many times as fast as `reference` the hook of `time` is in the same case: 2 takes half the time. None if that
// hook was not measured.
std::optional<double> speed_up(const BenchResults& results, const HookTime& time, const std::string& reference);

// The part of the time that its payload alone takes on the link, at the rate that the user gave, else as measured.
// None if neither is there.
std::optional<double> share_of_link(const BenchResults& results, const HookTime& time);

// The time of a hook as a function of size: latency + averaged_bytes / bandwidth.
struct HookFit {
  std::string hook = {};
  int64_t buckets = 0;
  int64_t sizes = 0;                         // how many were measured
  double latency_us = 0;                     // below zero where the times grow faster than the sizes
  std::optional<double> gb_per_second = {};  // of float32; none if larger sizes do not take longer
  double worst_residual = 0;                 // the largest |fitted - measured| / measured of the sizes
};

// For each number of buckets and hook the fit of the median times, by fit_line with x = averaged_bytes. None of those
// with fewer than three sizes. In the order of the results.
std::vector<HookFit> fit_hooks(const BenchResults& results);

// The results for people: lines and tables of at most 160 columns. Each text ends its last line.

// One line: rate and round trip.
std::string link_text(const LinkRate& link);

// A table with a line per format and each rate's share_of_memory.
std::string kernel_table(const KernelRates& kernels);

// One line: how many ranks, on how many nodes, in how many levels hooks of wire formats exchange over these, and
// whether on GPUs.
std::string ranks_text(const BenchResults& results);

// What is measured between ranks of one node, and how to measure a network. Empty where there are several nodes.
std::string one_node_text(const BenchResults& results);

// A table with a line per case and hook, and an empty line between cases; a dash stands where there is no number.
std::string hook_table(const BenchResults& results);

// A line for each case and hook that chose what to send; empty without any.
std::string decision_lines(const BenchResults& results);

// A table with a line per size and hook, and an empty line between sizes. Of results whose exactness was checked.
std::string exactness_table(const BenchResults& results);

// A table with a line per fit_hooks; empty without any.
std::string fit_table(const BenchResults& results);

// The results for other programs; docs/benchmarking.md lists the keys.

struct BenchOptions;

// An object with all that was measured with these options. What was not is absent; numbers that are not finite are
// null.
nlohmann::json to_json(const BenchOptions& options, const BenchResults& results);

}  // namespace narrowcast::bench
