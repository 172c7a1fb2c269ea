// The sizes of buckets that a run measures, as nccl-tests' -b, -e and -f choose them.
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

// Throws c10::ValueError naming the option and its value for a range without sizes, or with sizes that no bucket of
// float32 has.
void check_size_range(const SizeRange& range);

// The sizes of a valid range, bytes, ascending.
std::vector<int64_t> sizes_of(const SizeRange& range);

// The flags that say sizes, as the command line gave them.
struct SizeFlags {
  std::optional<std::string> min_bytes = {};
  std::optional<std::string> max_bytes = {};
  std::optional<int64_t> factor = {};
  bool bucket_mib_given = false;
};

// The range that the flags say, if they do. Throws c10::ValueError naming the flag and its value if both kinds of sizes
// are given, one of min_bytes and max_bytes is missing, a text is no size, the range is not valid, or the factor cannot
// take effect.
std::optional<SizeRange> read_size_range(const SizeFlags& flags);

// "1048576", "1024K" or "1M": bytes, or with K, M or G (or small letters) behind the number KiB, MiB or GiB, as
// nccl-tests reads sizes. Throws c10::ValueError naming the flag and the text.
int64_t parse_bytes(const std::string& flag, const std::string& text);

}  // namespace narrowcast::bench
