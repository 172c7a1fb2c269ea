#include "trainer/launcher/store/reach.h"

#include <gtest/gtest.h>

#include "trainer/launcher/store/listening_socket.h"

namespace narrowcast::launcher {
namespace {

using std::chrono::milliseconds;

TEST(Reach, FindsAListener) {
  const ListeningSocket socket("127.0.0.1", 0, {});
  EXPECT_EQ(try_to_reach("127.0.0.1", socket.port(), milliseconds(1000)), "");
  EXPECT_EQ(try_to_reach("localhost", socket.port(), milliseconds(1000)), "");
}

TEST(Reach, SaysWhyThereIsNone) {
  int64_t port = 0;
  {
    const ListeningSocket socket("127.0.0.1", 0, {});
    port = socket.port();
  }
  EXPECT_EQ(try_to_reach("127.0.0.1", port, milliseconds(1000)), "Connection refused");
  EXPECT_NE(try_to_reach("no such host", port, milliseconds(1000)), "");
}

}  // namespace
}  // namespace narrowcast::launcher
