// The sizes of the buckets of narrowcast-bench, chosen as with -b, -e and -f of nccl-tests.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace narrowcast::bench {

// The largest bucket of float32.
inline constexpr int64_t kMostBucketBytes = int64_t{4096} << 20;

// min_bytes, min_bytes * factor, min_bytes * factor^2 and so on up to max_bytes.
struct SizeRange {
  int64_t min_bytes = 0;  // a multiple of 4
  int64_t max_bytes = 0;
  int64_t factor = 2;

  bool operator==(const SizeRange&) const = default;
};

// Throws c10::ValueError naming the option and its value if the range contains no size, or sizes that a bucket of
// float32 cannot have.
void check_size_range(const SizeRange& range);

// The sizes of a valid range, bytes, ascending.
std::vector<int64_t> sizes_of(const SizeRange& range);

// The flags for sizes, as given on the command line.
struct SizeFlags {
  std::optional<std::string> min_bytes = {};
  std::optional<std::string> max_bytes = {};
  std::optional<int64_t> factor = {};
  bool bucket_mib_given = false;
};

// The range that the flags specify, if any does. Throws c10::ValueError naming the flag and its value if both kinds of
// sizes are given, one of min_bytes and max_bytes is missing, or the factor has no effect. It also throws if a text is
// not a size, or the range is not valid.
std::optional<SizeRange> read_size_range(const SizeFlags& flags);

// Reads "1048576", "1024K" or "1M": bytes or, with K, M or G (or small letters) after the number, KiB, MiB or GiB, as
// nccl-tests does. Throws c10::ValueError naming the flag and the text.
int64_t parse_bytes(const std::string& flag, const std::string& text);

}  // namespace narrowcast::bench
