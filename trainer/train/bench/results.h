// What narrowcast-bench has measured, how it compares, and how people and programs read it.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "ops/codec/wire_format.h"

namespace narrowcast::bench {

struct BenchOptions;

// The hook that all others are compared with.
inline constexpr const char* kReference = "allreduce";

// The hook that costs no thought: 16 bits of every gradient. The others are compared with it too.
inline constexpr const char* kBf16 = "bf16_compress";

// Point-to-point messages between neighbouring ranks.
struct LinkRate {
  double gbit_per_second = 0;      // each rank sends to the next one, all at once; of the slowest rank
  int64_t message_bytes = 0;       // of the messages behind it
  double round_trip_us = 0;        // of a small message, microseconds; between the slowest two neighbours
  int64_t payload_bytes_sent = 0;  // by this rank, to measure it
};

// One thread of rank 0, from memory and back, in GB/s of float32 that are read (encode) or written (decode).
struct FormatRates {
  WireFormat format;
  double encode = 0;
  double decode = 0;
};

// What one thread of rank 0 reaches.
struct KernelRates {
  double memory_read = 0;  // GB/s
  std::vector<FormatRates> formats = {};
};

// One hook in one case: so many buckets of that size in flight at once.
struct HookTime {
  std::string hook = {};
  int64_t bucket_bytes = 0;  // of float32
  int64_t buckets = 0;
  std::vector<double> milliseconds = {};  // of the slowest rank, in each measured iteration
  int64_t payload_bytes = 0;              // that each rank sends in one iteration; the most of any rank
  double median_ms = 0;
};

// Everything that one run has measured.
struct BenchResults {
  int64_t ranks = 0;
  std::optional<LinkRate> link = {};
  std::optional<double> given_gbit = {};  // the link's rate as the user knows it
  std::optional<KernelRates> kernels = {};
  std::vector<HookTime> hooks = {};  // case by case, the reference hook first in each
  int64_t payload_bytes_sent = 0;    // by this rank in the whole run, warm-up included
};

// Whether all ranks end with the mean of what they gave to this hook.
bool averages(const std::string& hook);

// The middle of the values, or the mean of the two in the middle. Throws c10::ValueError without values.
double median(std::vector<double> values);

// How many times as fast as `reference` the hook of `time` is in the same case: 2 takes half the time. None if that
// hook was not measured.
std::optional<double> speed_up(const BenchResults& results, const HookTime& time, const std::string& reference);

// The part of the time that its payload alone takes on the link, at the rate that the user gave, else as measured.
// None if neither is there.
std::optional<double> share_of_link(const BenchResults& results, const HookTime& time);

// The link for people. As each of these texts it ends its last line. One line: rate and round trip.
std::string link_text(const LinkRate& link);

// A table with a line per format and each rate's share of the memory's read rate.
std::string kernel_table(const KernelRates& kernels);

// A table with a line per case and hook; a dash stands where there is no number.
std::string hook_table(const BenchResults& results);

// The results for other programs; docs/benchmarking.md lists the keys.
nlohmann::json to_json(const BenchOptions& options, const BenchResults& results);

}  // namespace narrowcast::bench
