#include "ops/comm/connections/meeting/reception.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ops/comm/connections/meeting/meeting.h"
#include "tests/ops/comm/connections/messages/two_ends.h"
#include "tests/support/open_file_limit.h"
#include "tests/support/ranks.h"

namespace narrowcast::connections {
namespace {

constexpr Token kToken = {1, 2};

// A reception and what it has taken.
struct Door {
  explicit Door(size_t most_guests)
      : reception(kToken, most_guests, [this](const Hello& hello, FileDescriptor& socket) {
          taken.push_back(hello.index);
          sockets.push_back(std::move(socket));
        }) {}

  // The other end of a new connection.
  FileDescriptor knock() {
    auto [own, other] = connected_pair();
    reception.admit(std::move(own));
    return std::move(other);
  }
  void hear() { reception.hear(std::vector<bool>(reception.sockets().size(), true)); }

  std::vector<int64_t> taken;
  std::vector<FileDescriptor> sockets;
  Reception reception;
};

void send_bytes(const FileDescriptor& socket, const void* bytes, size_t size) {
  ASSERT_EQ(::send(socket.get(), bytes, size, MSG_NOSIGNAL), static_cast<ssize_t>(size));
}

bool is_closed(const FileDescriptor& socket) {
  char byte = 0;
  return ::recv(socket.get(), &byte, 1, MSG_DONTWAIT) == 0;
}

TEST(Reception, TakesConnectionsThatBeginWithTheToken) {
  Door door(3);
  const Hello hello{kToken, 4, 5};
  const FileDescriptor in_pieces = door.knock();
  const FileDescriptor wrong = door.knock();
  send_bytes(in_pieces, &hello, 10);
  const Hello other{{1, 3}, 4, 6};
  send_bytes(wrong, &other, sizeof(other));
  door.hear();
  EXPECT_TRUE(door.taken.empty());
  EXPECT_TRUE(is_closed(wrong));
  send_bytes(in_pieces, reinterpret_cast<const char*>(&hello) + 10, sizeof(hello) - 10);
  door.hear();
  EXPECT_EQ(door.taken, std::vector<int64_t>{5});
  EXPECT_FALSE(is_closed(in_pieces));
  EXPECT_TRUE(door.reception.sockets().empty());
}

TEST(Reception, ClosesTheOldestOfTooMany) {
  Door door(2);
  const FileDescriptor first = door.knock();
  const FileDescriptor second = door.knock();
  EXPECT_FALSE(is_closed(first));
  const FileDescriptor third = door.knock();
  EXPECT_TRUE(is_closed(first));
  EXPECT_FALSE(is_closed(second));
  door.hear();
  EXPECT_FALSE(is_closed(second) || is_closed(third)) << "they may be slow";
}

TEST(Reception, AcceptsNoMoreThanSomeConnectionsAtOnce) {
  const Listener listener("127.0.0.1");
  std::vector<FileDescriptor> others;
  for (int i = 0; i < 2 * Reception::kMostAtOnce; ++i) {
    others.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const SocketAddress& address = listener.card().address;
    ASSERT_EQ(::connect(others.back().get(), address.get(), address.length), 0);
  }
  Reception reception(kToken, 1000, [](const Hello&, FileDescriptor&) {});
  reception.accept_some(listener.socket());
  EXPECT_EQ(reception.sockets().size(), Reception::kMostAtOnce);
}

// A separate process, because its descriptors are used up.
TEST(ReceptionInAProcess, ClosesStrangersWhenDescriptorsRunOut) {
  const auto codes = testing::fork_ranks(1, [](int64_t, const auto&) {
    const Listener listener("127.0.0.1");
    std::vector<FileDescriptor> others;
    for (int i = 0; i < 20; ++i) {
      others.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      const SocketAddress& address = listener.card().address;
      ASSERT_EQ(::connect(others.back().get(), address.get(), address.length), 0);
    }
    const Hello hello{listener.card().token, 0, 0};
    send_bytes(others.back(), &hello, sizeof(hello));
    int taken = 0;
    Reception reception(listener.card().token, 100, [&](const Hello&, FileDescriptor&) { ++taken; });
    {
      const testing::OpenFileLimit limit(testing::next_descriptor() + 5);
      reception.accept_some(listener.socket());
    }
    EXPECT_EQ(taken, 1);
    EXPECT_LE(reception.sockets().size(), 5);
  });
  EXPECT_EQ(codes, std::vector<int>{testing::kRankPassed});
}

}  // namespace
}  // namespace narrowcast::connections
