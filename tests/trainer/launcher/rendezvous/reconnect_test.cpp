#include "trainer/launcher/rendezvous/reconnect.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>

#include "tests/trainer/launcher/rendezvous/store_fixture.h"

namespace narrowcast::launcher {
namespace {

using std::chrono::milliseconds;

class ReconnectTest : public StoreFixture {};

TEST_F(ReconnectTest, AConnectionThatBreaksTwiceIsMadeAThirdTime) {
  const auto always = [](milliseconds /*time*/) { return true; };
  int64_t looks = 0;
  const auto breaks_once = [&](const StorePtr& /*store*/) {
    TORCH_CHECK_WITH(DistNetworkError, ++looks > 1, "it broke");
    return true;
  };
  EXPECT_NE(reconnect(*store->store(), testing::kPatience, always, breaks_once), nullptr);
  EXPECT_EQ(looks, 2);
  const auto is_stranger = [](const StorePtr& /*store*/) { return false; };
  EXPECT_EQ(reconnect(*store->store(), testing::kPatience, always, is_stranger), nullptr);
  const auto breaks = [](const StorePtr& /*store*/) -> bool { TORCH_CHECK_WITH(DistNetworkError, false, "it broke"); };
  EXPECT_EQ(reconnect(*store->store(), milliseconds(200), always, breaks), nullptr) << "not for ever";
}

}  // namespace
}  // namespace narrowcast::launcher
