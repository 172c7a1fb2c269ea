#include "trainer/train/bench/sizes.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/error_message.h"

namespace narrowcast::bench {
namespace {

using ::testing::ElementsAre;
using testing::error_message;
using ::testing::HasSubstr;

TEST(SizeRange, EndsAtOrBelowItsGreatestSize) {
  EXPECT_THAT(sizes_of({.min_bytes = 1024, .max_bytes = 8192}), ElementsAre(1024, 2048, 4096, 8192));
  EXPECT_THAT(sizes_of({.min_bytes = 1024, .max_bytes = 8191, .factor = 4}), ElementsAre(1024, 4096));
  EXPECT_THAT(sizes_of({.min_bytes = 12, .max_bytes = 12}), ElementsAre(12));
}

TEST(ParseBytes, KnowsTheUnitsOfNcclTests) {
  EXPECT_EQ(parse_bytes("min_bytes", "100"), 100);
  EXPECT_EQ(parse_bytes("min_bytes", "64K"), 64 << 10);
  EXPECT_EQ(parse_bytes("min_bytes", "25m"), 25 << 20);
  EXPECT_EQ(parse_bytes("min_bytes", "1G"), 1 << 30);
  for (const char* const text : {"", "K", "big", "1.5M", "-4", "64KiB", "1T", "4 M M"}) {
    EXPECT_THAT(error_message<c10::ValueError>([&] { parse_bytes("min_bytes", text); }),
                HasSubstr("min_bytes: '" + std::string(text) + "' is not a size"));
  }
  EXPECT_THAT(error_message<c10::ValueError>([] { parse_bytes("max_bytes", "9223372036854775807G"); }),
              HasSubstr("max_bytes: '9223372036854775807G' is too large"));
}

TEST(SizeFlags, SayARange) {
  EXPECT_EQ(read_size_range({}), std::nullopt);
  EXPECT_EQ(read_size_range({.bucket_mib_given = true}), std::nullopt);
  EXPECT_EQ(read_size_range({.min_bytes = "64K", .max_bytes = "1M"}),
            (SizeRange{.min_bytes = 64 << 10, .max_bytes = 1 << 20, .factor = 2}));
  EXPECT_EQ(read_size_range({.min_bytes = "8", .max_bytes = "80", .factor = 10}),
            (SizeRange{.min_bytes = 8, .max_bytes = 80, .factor = 10}));
}

struct BadFlags {
  SizeFlags flags;
  const char* message;
};

class SizeFlagsErrors : public ::testing::TestWithParam<BadFlags> {};

TEST_P(SizeFlagsErrors, NameTheFlagAndItsValue) {
  EXPECT_THAT(error_message<c10::ValueError>([] { read_size_range(GetParam().flags); }), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    Values, SizeFlagsErrors,
    ::testing::Values(BadFlags{{.min_bytes = "1K", .max_bytes = "2K", .bucket_mib_given = true},
                               "bucket_mib: excludes min_bytes and max_bytes, because both set the sizes of buckets"},
                      BadFlags{{.max_bytes = "2K", .bucket_mib_given = true}, "because both set the sizes of buckets"},
                      BadFlags{{.min_bytes = "1K"}, "min_bytes: 1K needs max_bytes"},
                      BadFlags{{.max_bytes = "2K"}, "max_bytes: 2K needs min_bytes"},
                      BadFlags{{.factor = 4}, "factor: 4 has no effect without min_bytes and max_bytes"},
                      BadFlags{{.factor = 4, .bucket_mib_given = true}, "factor: 4 has no effect without"},
                      BadFlags{{.min_bytes = "1K", .max_bytes = "3K", .factor = 4},
                               "factor: 4 has no effect, because min_bytes (1024) * factor exceeds max_bytes (3072)"},
                      BadFlags{{.min_bytes = "1K", .max_bytes = "4K", .factor = 1},
                               "factor: must be at least 2, but is 1"},
                      BadFlags{{.min_bytes = "2K", .max_bytes = "1K"}, "max_bytes: must be in 2048 (min_bytes).."},
                      BadFlags{{.min_bytes = "0", .max_bytes = "1K"}, "min_bytes: must be in 4..4294967296, but is 0"},
                      BadFlags{{.min_bytes = "6", .max_bytes = "1K"}, "min_bytes: must be a multiple of 4"},
                      BadFlags{{.min_bytes = "1K", .max_bytes = "5G"}, "but is 5368709120"}));

}  // namespace
}  // namespace narrowcast::bench
