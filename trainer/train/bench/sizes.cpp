#include "trainer/train/bench/sizes.h"

#include <absl/strings/ascii.h>
#include <absl/strings/numbers.h>
#include <c10/util/Exception.h>

#include <limits>
#include <string_view>

namespace narrowcast::bench {
namespace {

constexpr auto kElementBytes = static_cast<int64_t>(sizeof(float));

int64_t unit_of(char letter) {
  constexpr std::string_view kUnits = "kmg";
  const size_t index = kUnits.find(absl::ascii_tolower(static_cast<unsigned char>(letter)));
  return index == std::string_view::npos ? 1 : int64_t{1} << (10 * (index + 1));
}

}  // namespace

void check_size_range(const SizeRange& range) {
  TORCH_CHECK_VALUE(range.min_bytes >= kElementBytes && range.min_bytes <= kMostBucketBytes, "min_bytes: must be in ",
                    kElementBytes, "..", kMostBucketBytes, ", but is ", range.min_bytes);
  TORCH_CHECK_VALUE(range.min_bytes % kElementBytes == 0, "min_bytes: must be a multiple of ", kElementBytes,
                    ", whole elements of float32, but is ", range.min_bytes);
  TORCH_CHECK_VALUE(range.max_bytes >= range.min_bytes && range.max_bytes <= kMostBucketBytes, "max_bytes: must be in ",
                    range.min_bytes, " (min_bytes)..", kMostBucketBytes, ", but is ", range.max_bytes);
  TORCH_CHECK_VALUE(range.factor >= 2, "factor: must be at least 2, but is ", range.factor);
}

std::vector<int64_t> sizes_of(const SizeRange& range) {
  std::vector<int64_t> sizes = {range.min_bytes};
  while (sizes.back() <= range.max_bytes / range.factor) {
    sizes.push_back(sizes.back() * range.factor);
  }
  return sizes;
}

std::optional<SizeRange> read_size_range(const SizeFlags& flags) {
  if (!flags.min_bytes && !flags.max_bytes) {
    TORCH_CHECK_VALUE(!flags.factor, "factor: ", *flags.factor, " has no effect without min_bytes and max_bytes");
    return std::nullopt;
  }
  TORCH_CHECK_VALUE(!flags.bucket_mib_given,
                    "bucket_mib: excludes min_bytes and max_bytes, because both set the sizes of buckets");
  TORCH_CHECK_VALUE(flags.min_bytes, "max_bytes: ", *flags.max_bytes, " needs min_bytes, the smallest size");
  TORCH_CHECK_VALUE(flags.max_bytes, "min_bytes: ", *flags.min_bytes, " needs max_bytes, the largest size");
  SizeRange range;
  range.min_bytes = parse_bytes("min_bytes", *flags.min_bytes);
  range.max_bytes = parse_bytes("max_bytes", *flags.max_bytes);
  range.factor = flags.factor.value_or(range.factor);
  check_size_range(range);
  TORCH_CHECK_VALUE(!flags.factor || sizes_of(range).size() > 1, "factor: ", range.factor,
                    " has no effect, because min_bytes (", range.min_bytes, ") * factor exceeds max_bytes (",
                    range.max_bytes, ")");
  return range;
}

int64_t parse_bytes(const std::string& flag, const std::string& text) {
  const int64_t unit = text.empty() ? 1 : unit_of(text.back());
  const std::string digits = text.substr(0, text.size() - (unit == 1 ? 0 : 1));
  int64_t number = 0;
  TORCH_CHECK_VALUE(absl::SimpleAtoi(digits, &number) && number >= 0, flag, ": '", text,
                    "' is not a size; write a number of bytes, or a number of KiB, MiB or GiB followed by K, M or G");
  TORCH_CHECK_VALUE(number <= std::numeric_limits<int64_t>::max() / unit, flag, ": '", text, "' is too large");
  return number * unit;
}

}  // namespace narrowcast::bench
