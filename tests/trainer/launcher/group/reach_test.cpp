#include "trainer/launcher/group/reach.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <vector>

#include "tests/support/loopback_socket.h"
#include "tests/support/patience.h"
#include "trainer/base/files/file_descriptor.h"

namespace narrowcast::launcher {
namespace {

using std::chrono::milliseconds;

std::string try_once(const std::string& host, int64_t port, milliseconds left) {
  return try_to_reach(host, port, left);
}

TEST(Reach, FindsAListener) {
  const network::ListeningSocket socket = testing::loopback_socket();
  EXPECT_EQ(try_once("127.0.0.1", socket.port(), testing::kPatience), "");
  EXPECT_EQ(try_once("localhost", socket.port(), testing::kPatience), "");
}

TEST(Reach, SaysWhyThereIsNone) {
  const int64_t port = testing::free_port();
  EXPECT_EQ(try_once("127.0.0.1", port, testing::kPatience), "Connection refused");
  EXPECT_NE(try_once("no such host", port, testing::kPatience), "");
}

TEST(Reach, TakesTheTimeThatItNeededFromWhatIsLeft) {
  // A listener that accepts nothing: once its queue is full, whoever connects waits.
  const files::FileDescriptor full(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* const place = reinterpret_cast<sockaddr*>(&address);
  ASSERT_EQ(bind(full.get(), place, length), 0);
  ASSERT_EQ(listen(full.get(), 0), 0);
  ASSERT_EQ(getsockname(full.get(), place, &length), 0);
  std::vector<files::FileDescriptor> waiting;
  for (int i = 0; i < 4; ++i) {
    waiting.emplace_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    connect(waiting.back().get(), place, length);
  }
  milliseconds left(50);
  EXPECT_EQ(try_to_reach("127.0.0.1", ntohs(address.sin_port), left), "Connection timed out");
  EXPECT_EQ(left, milliseconds(0));
}

}  // namespace
}  // namespace narrowcast::launcher
