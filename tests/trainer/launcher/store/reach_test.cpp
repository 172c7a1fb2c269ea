#include "trainer/launcher/store/reach.h"

#include <gtest/gtest.h>

#include "tests/support/loopback_socket.h"

namespace narrowcast::launcher {
namespace {

using std::chrono::milliseconds;

TEST(Reach, FindsAListener) {
  const network::ListeningSocket socket = testing::loopback_socket();
  EXPECT_EQ(try_to_reach("127.0.0.1", socket.port(), milliseconds(1000)), "");
  EXPECT_EQ(try_to_reach("localhost", socket.port(), milliseconds(1000)), "");
}

TEST(Reach, SaysWhyThereIsNone) {
  const int64_t port = testing::free_port();
  EXPECT_EQ(try_to_reach("127.0.0.1", port, milliseconds(1000)), "Connection refused");
  EXPECT_NE(try_to_reach("no such host", port, milliseconds(1000)), "");
}

}  // namespace
}  // namespace narrowcast::launcher
