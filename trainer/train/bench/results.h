// What narrowcast-bench has measured.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ops/codec/wire_format.h"

namespace narrowcast::bench {

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

struct BenchResults {
  int64_t ranks = 0;
  std::optional<LinkRate> link = {};
  std::optional<double> given_gbit = {};  // the link's rate as the user knows it
  std::optional<KernelRates> kernels = {};
  std::vector<HookTime> hooks = {};  // case by case, the reference hook first in each
  int64_t payload_bytes_sent = 0;    // by this rank in the whole run, warm-up included
};

}  // namespace narrowcast::bench
