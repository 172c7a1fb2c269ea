#include "trainer/process_group/rendezvous/listening_socket.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/support/error_message.h"
#include "tests/support/listening_sockets.h"

namespace narrowcast::rendezvous {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::listening_addresses;

std::string error_at(const std::string& address, int64_t port) {
  return testing::error_message<c10::DistNetworkError>([&] { ListeningSocket(address, port); });
}

TEST(ListeningSocketTest, ListensAtItsAddressAloneAndCloses) {
  for (const std::string address : {"127.0.0.1", "127.0.0.2", "::1"}) {
    const ListeningSocket socket(address, 0);
    EXPECT_GT(socket.port(), 0);
    EXPECT_THAT(listening_addresses(), ElementsAre(address));
  }
  EXPECT_THAT(listening_addresses(), ElementsAre());
}

TEST(ListeningSocketTest, GivesItsDescriptorAway) {
  ListeningSocket socket("127.0.0.1", 0);
  const int descriptor = socket.release();
  EXPECT_THAT(listening_addresses(), ElementsAre("127.0.0.1"));
  EXPECT_EQ(::close(descriptor), 0);
}

TEST(ListeningSocketTest, SaysWhyItCannot) {
  const ListeningSocket taken("127.0.0.1", 0);
  EXPECT_THAT(error_at("127.0.0.1", taken.port()), HasSubstr("in use"));
  EXPECT_THAT(error_at("203.0.113.9", 0), HasSubstr("203.0.113.9 port 0: it is no address of this machine"));
  EXPECT_THAT(error_at("somewhere", 0), HasSubstr("somewhere is no internet address"));
}

}  // namespace
}  // namespace narrowcast::rendezvous
