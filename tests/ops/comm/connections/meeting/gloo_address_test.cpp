#include "ops/comm/connections/meeting/gloo_address.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <vector>

#include "tests/support/error_message.h"
#include "tests/support/ranks.h"

namespace narrowcast::connections {
namespace {

using ::testing::HasSubstr;

class AnotherBackend final : public c10d::Backend {
 public:
  AnotherBackend() : Backend(0, 1) {}
};

// Gloo over these addresses, one network each.
c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo_over(const std::vector<std::string>& addresses) {
  const auto options = c10d::ProcessGroupGloo::Options::create();
  for (const std::string& address : addresses) {
    options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(address));
  }
  return c10::make_intrusive<c10d::ProcessGroupGloo>(c10::make_intrusive<c10d::HashStore>(), 0, 1, options);
}

TEST(GlooAddress, IsThatOfTheFirstNetwork) {
  EXPECT_EQ(gloo_address(*gloo_over({"127.0.0.1"})), "127.0.0.1");
  const auto two = gloo_over({"127.0.0.3", "127.0.0.1"});
  EXPECT_EQ(gloo_address(*two), "127.0.0.3");
  EXPECT_EQ(gloo_networks(*two), 2);
}

TEST(GlooAddress, IsThatOfAGroup) {
  testing::run_ranks(2, [](int64_t, const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
    const auto backend = group->getBackend(c10::DeviceType::CPU);
    EXPECT_EQ(gloo_address(*backend), "127.0.0.1");
    EXPECT_EQ(gloo_networks(*backend), 1);
  });
}

TEST(GlooAddress, OfAnotherBackendIsAnError) {
  AnotherBackend other;
  EXPECT_THAT(testing::error_message<c10::ValueError>([&] { gloo_address(other); }), HasSubstr("is not Gloo"));
  EXPECT_THAT(testing::error_message<c10::ValueError>([&] { gloo_networks(other); }), HasSubstr("is not Gloo"));
}

}  // namespace
}  // namespace narrowcast::connections
