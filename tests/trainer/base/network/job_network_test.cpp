#include "trainer/base/network/job_network.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace narrowcast::network {
namespace {

TEST(JobNetwork, IsSimulatedWhereTheLauncherDescribesIt) {
  const EnvironmentVariables simulated = {{kSimulatedVariable, "1 Gbit/s, 50 us"}};
  EXPECT_TRUE(is_simulated(simulated));
  EXPECT_EQ(describe_network(simulated), "simulated, 1 Gbit/s, 50 us");
  for (const EnvironmentVariables& real : {EnvironmentVariables{}, EnvironmentVariables{{kSimulatedVariable, ""}}}) {
    EXPECT_FALSE(is_simulated(real));
    EXPECT_THAT(describe_network(real), ::testing::AnyOf("loopback alone", "shared"));
  }
}

}  // namespace
}  // namespace narrowcast::network
