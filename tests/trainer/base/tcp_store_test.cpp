#include "trainer/base/tcp_store.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "tests/support/listening_sockets.h"
#include "tests/support/loopback_socket.h"
#include "tests/support/patience.h"

namespace narrowcast::network {
namespace {

using ::testing::ElementsAre;
using namespace std::chrono_literals;

TEST(TcpStore, IsServedAtTheSocketsAddressAlone) {
  const ListeningSocket socket = testing::loopback_socket("127.0.0.2");
  const TcpStorePtr server = serve_tcp_store("127.0.0.2", socket, testing::kPatience);
  EXPECT_THAT(testing::listening_addresses(), ElementsAre("127.0.0.2"));
  const TcpStorePtr client = reach_tcp_store("127.0.0.2", socket.port(), testing::kPatience);
  client->set("key", std::vector<uint8_t>{7});
  EXPECT_THAT(server->get("key"), ElementsAre(7));
}

TEST(TcpStore, WaitsForAKeyNoLongerThanAskedFor) {
  const ListeningSocket socket = testing::loopback_socket();
  const TcpStorePtr server = serve_tcp_store("127.0.0.1", socket, testing::kPatience);
  EXPECT_EQ(server->getTimeout(), testing::kPatience);
  EXPECT_THROW(reach_tcp_store("127.0.0.1", socket.port(), 100ms)->get("key"), c10::DistStoreError);
}

TEST(TcpStore, CannotBeReachedWhereNobodyServes) {
  EXPECT_THROW(reach_tcp_store("127.0.0.1", testing::free_port(), 100ms), c10::DistError);
}

}  // namespace
}  // namespace narrowcast::network
