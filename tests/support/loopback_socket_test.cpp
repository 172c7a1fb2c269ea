#include "tests/support/loopback_socket.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <set>

namespace narrowcast::testing {
namespace {

TEST(FreePort, IsGivenToNobodyElse) {
  constexpr int64_t kPorts = 500;  // Chance of 500 random ports of 23,000 all being different: 1 in 230.
  const int64_t given_by_the_kernel = loopback_socket().port();
  std::set<int64_t> ports;
  for (int64_t i = 0; i < kPorts; ++i) ports.insert(free_port());
  EXPECT_EQ(static_cast<int64_t>(ports.size()), kPorts);
  EXPECT_LT(*ports.rbegin(), given_by_the_kernel);
}

}  // namespace
}  // namespace narrowcast::testing
