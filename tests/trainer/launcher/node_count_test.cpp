#include "trainer/launcher/node_count.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/error_message.h"

namespace narrowcast::launcher {
namespace {

using ::testing::StartsWith;

TEST(NodeCount, IsANumberOrARange) {
  EXPECT_EQ(parse_nnodes("3").least, 3);
  EXPECT_EQ(parse_nnodes("3").most, 3);
  EXPECT_EQ(parse_nnodes("1:4").least, 1);
  EXPECT_EQ(parse_nnodes("1:4").most, 4);
  EXPECT_FALSE(parse_nnodes("1:1").several());
  EXPECT_TRUE(parse_nnodes("1:2").several());
}

TEST(NodeCount, RefusesTheRest) {
  for (const char* const text : {"", "0", "-1", "2:1", "1:", ":2", "1:2:3", "x", "4097"}) {
    EXPECT_THAT(testing::error_message<c10::ValueError>([&] { parse_nnodes(text); }),
                StartsWith(std::string("--nnodes=") + text + ": must be a number of nodes"));
  }
}

TEST(Endpoint, HasAHostAndMaybeAPort) {
  EXPECT_EQ(parse_endpoint("node0:1234", 5).host, "node0");
  EXPECT_EQ(parse_endpoint("node0:1234", 5).port, 1234);
  EXPECT_EQ(parse_endpoint("node0", 5).port, 5);
  EXPECT_EQ(parse_endpoint("[fe::1]:1234", 5).host, "fe::1");
  EXPECT_EQ(parse_endpoint("[fe::1]:1234", 5).port, 1234);
  EXPECT_EQ(parse_endpoint("[::1]", 5).host, "::1");
}

TEST(Endpoint, RefusesTheRest) {
  for (const char* const text : {"", ":1", "h:", "h:x", "h:65536", "h:-1", "fe::1", "[]:1"}) {
    EXPECT_THAT(testing::error_message<c10::ValueError>([&] { parse_endpoint(text, 5); }),
                StartsWith(std::string("--rdzv_endpoint=") + text + ": must be HOST:PORT"));
  }
}

}  // namespace
}  // namespace narrowcast::launcher
