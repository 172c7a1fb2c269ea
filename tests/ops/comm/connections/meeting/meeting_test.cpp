#include "ops/comm/connections/meeting/meeting.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/ops/comm/connections/messages/standard_error.h"
#include "tests/support/error_message.h"
#include "tests/support/patience.h"

namespace narrowcast::connections {
namespace {

using ::testing::HasSubstr;
using testing::kPatience;

struct Rank {
  Listener listener{"127.0.0.1"};
  SocketsByPeer sockets = {};
};

std::vector<Card> cards_of(const std::vector<std::unique_ptr<Rank>>& ranks) {
  std::vector<Card> cards;
  for (const auto& rank : ranks) cards.push_back(rank->listener.card());
  return cards;
}

FileDescriptor connect_to(const Card& card) {
  FileDescriptor socket(::socket(card.address.bytes.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::connect(socket.get(), card.address.get(), card.address.length), 0);
  return socket;
}

TEST(Meeting, ConnectsEachPairByNumberAndTurnsStrangersAway) {
  constexpr int64_t kRanks = 4;
  constexpr int64_t kConnections = 5;
  std::vector<std::unique_ptr<Rank>> ranks;
  for (int64_t rank = 0; rank < kRanks; ++rank) ranks.push_back(std::make_unique<Rank>());
  const std::vector<Card> cards = cards_of(ranks);
  std::vector<FileDescriptor> strangers;  // One says nothing, one the wrong token.
  for (int i = 0; i < 2; ++i) strangers.push_back(connect_to(cards[3]));
  const std::string wrong(sizeof(Token) + 2 * sizeof(int64_t), '\0');
  ASSERT_EQ(::send(strangers[1].get(), wrong.data(), wrong.size(), 0), static_cast<ssize_t>(wrong.size()));
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      std::vector<int64_t> peers;
      for (int64_t peer = 0; peer < kRanks; ++peer) {
        if (peer != rank) peers.push_back(peer);
      }
      ranks[rank]->sockets = meet(ranks[rank]->listener, cards, {rank, peers, kConnections, kPatience});
    });
  }
  for (auto& thread : threads) thread.join();
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    ASSERT_EQ(ranks[rank]->sockets.size(), kRanks - 1);
    for (const auto& [peer, sockets] : ranks[rank]->sockets) {
      ASSERT_EQ(sockets.size(), kConnections);
      for (size_t i = 0; i < sockets.size(); ++i) {  // The same connection has the same number on both sides.
        const char sent = static_cast<char>(10 * rank + static_cast<int64_t>(i));
        ASSERT_EQ(::send(sockets[i].get(), &sent, 1, 0), 1);
        char received = 0;
        ASSERT_EQ(::recv(ranks[peer]->sockets.at(rank)[i].get(), &received, 1, MSG_WAITALL), 1);
        EXPECT_EQ(received, sent);
      }
    }
  }
}

// Packets may come as soon as a connection is open.
TEST(Meeting, GivesBothEndsTheirOptions) {
  const SocketOptions options{.congestion_control = "reno", .keeps_times = true};
  std::vector<std::unique_ptr<Rank>> ranks;
  for (int i = 0; i < 2; ++i) ranks.push_back(std::make_unique<Rank>(Rank{Listener("127.0.0.1", options)}));
  const std::vector<Card> cards = cards_of(ranks);
  const auto meet_as = [&](int64_t rank) {
    ranks[rank]->sockets = meet(ranks[rank]->listener, cards, {rank, {1 - rank}, 2, kPatience, options});
  };
  std::thread peer([&] { meet_as(0); });
  meet_as(1);
  peer.join();
  for (int64_t rank = 0; rank < 2; ++rank) {
    for (const auto& socket : ranks[rank]->sockets.at(1 - rank)) {
      int keeps_times = 0;
      socklen_t length = sizeof(keeps_times);
      EXPECT_EQ(::getsockopt(socket.get(), SOL_SOCKET, SO_TIMESTAMPNS, &keeps_times, &length), 0);
      EXPECT_EQ(keeps_times, 1) << rank;
      std::array<char, 16> name{};
      length = name.size();
      EXPECT_EQ(::getsockopt(socket.get(), IPPROTO_TCP, TCP_CONGESTION, name.data(), &length), 0);
      EXPECT_STREQ(name.data(), "reno") << rank;
    }
  }
}

// The peers' connections are accepted beside a flood of strangers, in a moment.
TEST(Meeting, IsNotDelayedByStrangersThatSendNothing) {
  constexpr int kStrangers = 600;
  std::vector<std::unique_ptr<Rank>> ranks;
  for (int64_t rank = 0; rank < 2; ++rank) ranks.push_back(std::make_unique<Rank>());
  const std::vector<Card> cards = cards_of(ranks);
  std::vector<FileDescriptor> strangers;
  for (int i = 0; i < kStrangers; ++i) strangers.push_back(connect_to(cards[1]));
  std::thread peer([&] { ranks[0]->sockets = meet(ranks[0]->listener, cards, {0, {1}, 2, kPatience}); });
  const auto begin = std::chrono::steady_clock::now();
  ranks[1]->sockets = meet(ranks[1]->listener, cards, {1, {0}, 2, kPatience});
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kPatience / 2);
  peer.join();
  for (const auto& socket : ranks[1]->sockets.at(0)) EXPECT_TRUE(socket.is_open());
}

TEST(Meeting, CanBeStopped) {
  std::vector<std::unique_ptr<Rank>> ranks;
  for (int64_t rank = 0; rank < 2; ++rank) ranks.push_back(std::make_unique<Rank>());
  std::thread stopper([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    ranks[1]->listener.stop_meeting();
  });
  EXPECT_THROW(meet(ranks[1]->listener, cards_of(ranks), {1, {0}, 2, kPatience}), MeetingStopped);
  stopper.join();
}

TEST(Meeting, NamesAPeerThatCannotBeReachedOrDoesNotCome) {
  std::vector<std::unique_ptr<Rank>> ranks;
  for (int64_t rank = 0; rank < 2; ++rank) ranks.push_back(std::make_unique<Rank>());
  const std::vector<Card> cards = cards_of(ranks);
  const auto of_rank_1 = [&] { meet(ranks[1]->listener, cards, {1, {0}, 2, std::chrono::milliseconds(50)}); };
  EXPECT_THAT(standard_error<std::runtime_error>(of_rank_1),
              HasSubstr("Timed out after 50ms: no connection with rank 0 at [127.0.0.1]:"));
  ranks[1].reset();
  const auto of_rank_0 = [&] { meet(ranks[0]->listener, cards, {0, {1}, 2, kPatience}); };
  EXPECT_THAT(standard_error<std::runtime_error>(of_rank_0),
              ::testing::AllOf(HasSubstr("cannot connect to rank 1 at [127.0.0.1]:"), HasSubstr("refused")));
}

TEST(Listener, NamesAnAddressThatIsNotThisMachines) {
  EXPECT_THAT(standard_error<std::system_error>([] { Listener("192.0.2.1"); }), HasSubstr("listening at 192.0.2.1"));
  EXPECT_EQ(testing::error_message<c10::ValueError>([] { Listener("lo"); }), "'lo' is not an IP address");
}

TEST(SocketAddress, HasTheTextOfGloosErrors) {
  EXPECT_EQ(SocketAddress::of_ip("10.1.2.3").text(), "[10.1.2.3]:0");
  EXPECT_EQ(SocketAddress::of_ip("fe80::1").text(), "[fe80::1]:0");
}

}  // namespace
}  // namespace narrowcast::connections
