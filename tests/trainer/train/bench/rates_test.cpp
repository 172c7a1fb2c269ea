#include "trainer/train/bench/rates.h"

#include <gtest/gtest.h>

#include "tests/support/ranks.h"

namespace narrowcast::bench {
namespace {

class LinkRateTest : public ::testing::TestWithParam<int64_t> {};

TEST_P(LinkRateTest, IsTheSameOnAllRanks) {
  std::vector<LinkRate> links(static_cast<size_t>(GetParam()));
  testing::run_ranks(GetParam(), [&](int64_t rank, const ProcessGroupPtr& group) {
    links[static_cast<size_t>(rank)] = measure_link(
        group, {.pings = 3, .messages = 2, .message_seconds = 1e-3, .least_bytes = 1 << 16, .most_bytes = 1 << 20});
  });
  for (const LinkRate& link : links) {
    EXPECT_GT(link.gbit_per_second, 0);
    EXPECT_EQ(link.gbit_per_second, links[0].gbit_per_second);
    EXPECT_GT(link.round_trip_us, 0);
    EXPECT_EQ(link.round_trip_us, links[0].round_trip_us);
    EXPECT_GE(link.message_bytes, 1 << 16);
    EXPECT_LE(link.message_bytes, 1 << 20);
    EXPECT_EQ(link.message_bytes, links[0].message_bytes);
    EXPECT_GE(link.payload_bytes_sent, 2 * 3 * 16 + 2 * link.message_bytes) << "pings, echoes, and messages of a size";
    EXPECT_EQ(link.payload_bytes_sent, links[0].payload_bytes_sent);
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, LinkRateTest, ::testing::Values(2, 3));

TEST(KernelRates, CoverEveryFormat) {
  const KernelRates rates = measure_kernels({.elements = 4096, .turns = 2});
  EXPECT_GT(rates.memory_read, 0);
  ASSERT_EQ(rates.formats.size(), kWireFormats.size());
  for (size_t i = 0; i < kWireFormats.size(); ++i) {
    EXPECT_EQ(rates.formats[i].format, kWireFormats[i]);
    EXPECT_GT(rates.formats[i].encode, 0);
    EXPECT_GT(rates.formats[i].decode, 0);
  }
}

}  // namespace
}  // namespace narrowcast::bench
