#include "trainer/base/network/tcp_store.h"
#include "ops/common/file_descriptor.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/error_message.h"
#include "tests/support/listening_sockets.h"
#include "tests/support/loopback_socket.h"
#include "tests/support/patience.h"

namespace narrowcast::network {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::listening_addresses;
using testing::loopback_socket;
using namespace std::chrono_literals;

// 0 if it can listen there, else the error.
int error_at(const std::string& address, int64_t port) {
  int error = 0;
  const AddressList found = find_addresses(address, error);
  const bool listens = ListeningSocket::listen_at({*found, port}, error).has_value();
  EXPECT_EQ(listens, error == 0);
  return error;
}

TEST(ListeningSocket, ListensAtItsAddressAloneAndCloses) {
  for (const std::string address : {"127.0.0.1", "127.0.0.2", "::1"}) {
    const ListeningSocket socket = loopback_socket(address);
    EXPECT_GT(socket.port(), 0);
    EXPECT_THAT(listening_addresses(), ElementsAre(address));
  }
  EXPECT_THAT(listening_addresses(), IsEmpty());
}

TEST(ListeningSocket, FindsAFreePort) { EXPECT_NE(loopback_socket().port(), loopback_socket().port()); }

TEST(ListeningSocket, SaysWhyItCannot) {
  const ListeningSocket taken = loopback_socket();
  EXPECT_EQ(error_at("127.0.0.1", taken.port()), EADDRINUSE);
  // 203.0.113.0/24 is reserved for documents (RFC 5737): no machine has it.
  EXPECT_EQ(error_at("203.0.113.9", 0), EADDRNOTAVAIL);
}

TEST(ListeningSocket, TakesTheFirstAddressOfAHostWhereItCan) {
  // Two addresses of one host: another machine's, then this machine's.
  int error = 0;
  const AddressList other = find_addresses("203.0.113.9", error);
  const AddressList own = find_addresses("127.0.0.1", error);
  addrinfo first = *other;
  first.ai_next = own.get();
  const AddressList both(&first, [](addrinfo* /*list*/) {});
  const auto socket = ListeningSocket::listen_at(both, 0, error);
  ASSERT_TRUE(socket.has_value());
  EXPECT_EQ(error, 0);
  EXPECT_THAT(listening_addresses(), ElementsAre("127.0.0.1"));
  EXPECT_FALSE(ListeningSocket::listen_at(both, socket->port(), error).has_value());
  EXPECT_EQ(error, EADDRINUSE) << "one of the two is this machine's";
  EXPECT_FALSE(ListeningSocket::listen_at(other, 0, error).has_value());
  EXPECT_EQ(error, EADDRNOTAVAIL);
}

// E.g. ::1 and 127.0.0.1, which are both "localhost".
TEST(ListeningSocket, TakesNoOtherAddressOfAHostThatIsServed) {
  const ListeningSocket taken = loopback_socket("127.0.0.1");
  int error = 0;
  const AddressList one = find_addresses("127.0.0.1", error);
  const AddressList other = find_addresses("127.0.0.2", error);
  addrinfo first = *one;
  first.ai_next = other.get();
  const AddressList both(&first, [](addrinfo* /*list*/) {});
  EXPECT_FALSE(ListeningSocket::listen_at(both, taken.port(), error).has_value());
  EXPECT_EQ(error, EADDRINUSE);
}

TEST(ListeningSocket, CanHaveThePortWhoseLastConnectionsAreStillClosing) {
  int64_t port = 0;
  {
    const ListeningSocket socket = loopback_socket();
    port = socket.port();
    int error = 0;
    const SocketAddress address(*find_addresses("127.0.0.1", error), port);
    const FileDescriptor client(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(::connect(client.get(), address.get(), address.length), 0);
    const FileDescriptor listener(socket.duplicate());
    FileDescriptor served(::accept(listener.get(), nullptr, nullptr));
    ASSERT_TRUE(served.is_open());
    served.close();  // The side that closes first keeps the port, for late packets.
  }
  EXPECT_EQ(error_at("127.0.0.1", port), 0);
}

TEST(ListeningSocket, ListensUntilTheLastOfItsDescriptorsIsClosed) {
  int duplicate = -1;
  {
    const ListeningSocket socket = loopback_socket();
    ::close(socket.duplicate());
    EXPECT_THAT(listening_addresses(), ElementsAre("127.0.0.1")) << "its own is open";
    duplicate = socket.duplicate();
  }
  EXPECT_THAT(listening_addresses(), ElementsAre("127.0.0.1")) << "the duplicate is open";
  EXPECT_EQ(::close(duplicate), 0);
  EXPECT_THAT(listening_addresses(), IsEmpty());
}

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

// The kernel accepts the connection, and nothing answers.
TEST(TcpStore, CannotBeReachedWhereSomethingElseListens) {
  const ListeningSocket silent = loopback_socket();
  EXPECT_THAT(
      testing::error_message<c10::DistNetworkError>([&] { reach_tcp_store("127.0.0.1", silent.port(), 100ms); }),
      ::testing::HasSubstr("does not answer as a store"));
}

}  // namespace

}  // namespace narrowcast::network
