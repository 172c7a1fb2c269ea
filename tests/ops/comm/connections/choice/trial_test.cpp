#include "ops/comm/connections/choice/trial.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <chrono>
#include <fstream>
#include <thread>
#include <utility>
#include <vector>

#include "ops/comm/connections/meeting/meet_together.h"
#include "ops/comm/connections/messages/addresses.h"

namespace narrowcast::connections {
namespace {

constexpr double kRoundTrip = 0.1;

// Packets of 1000 bytes at that rate, from `begin` on; those within a burst come at once.
void add_train(std::vector<Arrival>& arrivals, double begin, int64_t packets, double rate, int64_t burst = 0) {
  for (int64_t i = 0; i < packets; ++i) {
    arrivals.push_back({begin + 1000.0 * static_cast<double>(std::max<int64_t>(0, i - burst)) / rate, 1000});
  }
}

TEST(RateOfTrains, IsThatOfTheLongestTrain) {
  std::vector<Arrival> arrivals;
  add_train(arrivals, 1.2, 1000, 1e8);
  add_train(arrivals, 1.0, 100, 1e9);
  add_train(arrivals, 1.1, 200, 1e7);
  EXPECT_NEAR(rate_of_trains(arrivals, kRoundTrip), 1e8, 1e6);
}

TEST(RateOfTrains, LeavesOutABurst) {
  std::vector<Arrival> arrivals;
  add_train(arrivals, 1, 1000, 1e8, /*burst=*/400);
  EXPECT_NEAR(rate_of_trains(arrivals, kRoundTrip), 1e8, 1e6);
}

TEST(RateOfTrains, OfNothingAndOfAllAtOnceIsNone) {
  EXPECT_EQ(rate_of_trains({}, kRoundTrip), 0);
  EXPECT_EQ(rate_of_trains({{1, 1000}, {1, 1000}, {1, 1000}}, kRoundTrip), 0);
}

std::vector<std::pair<FileDescriptor, FileDescriptor>> tcp_pairs(int count) {
  const FileDescriptor listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const SocketAddress any = SocketAddress::of_ip("127.0.0.1");
  EXPECT_EQ(::bind(listener.get(), any.get(), any.length), 0);
  EXPECT_EQ(::listen(listener.get(), count), 0);
  const SocketAddress address = SocketAddress::of_socket(listener.get());
  std::vector<std::pair<FileDescriptor, FileDescriptor>> pairs;
  for (int i = 0; i < count; ++i) {
    FileDescriptor one(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::connect(one.get(), address.get(), address.length), 0);
    pairs.emplace_back(std::move(one), FileDescriptor(::accept(listener.get(), nullptr, nullptr)));
  }
  return pairs;
}

constexpr TrialTimes kShort{.time = std::chrono::milliseconds(50)};

TEST(SendAndReceive, BothWaysEndsInTimeAndCountsBytes) {
  auto pairs = tcp_pairs(4);
  std::vector<FileDescriptor> ends[2];
  for (auto& [one, other] : pairs) {
    ends[0].push_back(std::move(one));
    ends[1].push_back(std::move(other));
  }
  Trial trials[2];
  std::vector<std::thread> threads;
  for (int side = 0; side < 2; ++side) {
    threads.emplace_back([&, side] { trials[side] = send_and_receive(ends[side], ends[side], kShort); });
  }
  for (auto& thread : threads) thread.join();
  for (int i = 0; i < 2; ++i) {
    const auto& side = trials[i].arrivals;
    int64_t received = 0;
    ASSERT_FALSE(side.empty());
    double first = side[0].seconds;
    double last = first;
    for (const Arrival& arrival : side) {
      first = std::min(first, arrival.seconds);
      last = std::max(last, arrival.seconds);
      EXPECT_GT(arrival.bytes, 0);
      received += arrival.bytes;
    }
    EXPECT_GE(trials[1 - i].bytes_sent, received);
    EXPECT_LE(trials[1 - i].bytes_sent, received + 4 * 2 * 10'000'000) << "what the kernel keeps";
    EXPECT_LT(last - first, 1) << "seconds of one clock";
    EXPECT_GT(rate_of_trains(side, 1e-3), 1e6);
  }
}

TEST(SendAndReceive, ReturnsWhatHasComeWhenThePeerEnds) {
  auto pairs = tcp_pairs(1);
  std::vector<FileDescriptor> own;
  own.push_back(std::move(pairs[0].first));
  pairs[0].second.close();
  EXPECT_TRUE(send_and_receive(own, own, {.wait = std::chrono::milliseconds(50)}).arrivals.empty());
}

// The thread comes late. The bytes came before.
TEST(SendAndReceive, HasTheKernelsTimes) {
  auto pairs = tcp_pairs(1);
  const int on = 1;
  ASSERT_EQ(::setsockopt(pairs[0].first.get(), SOL_SOCKET, SO_TIMESTAMPNS, &on, sizeof(on)), 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // The kernel begins to keep times a little later.
  ASSERT_EQ(::send(pairs[0].second.get(), "bytes", 5, 0), 5);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  std::vector<FileDescriptor> own;
  own.push_back(std::move(pairs[0].first));
  const double begin = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  const Trial trial = send_and_receive({}, own, kShort);
  ASSERT_EQ(trial.arrivals.size(), 1);
  EXPECT_LT(trial.arrivals[0].seconds, begin - 0.1);
  EXPECT_GT(trial.arrivals[0].seconds, begin - 60);
}

// Later than the wait for the first bytes.
TEST(SendAndReceive, WaitsForTheFirstBytesOnlyForAWhile) {
  auto pairs = tcp_pairs(1);
  std::vector<FileDescriptor> own;
  own.push_back(std::move(pairs[0].first));
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_TRUE(send_and_receive({}, own, {.wait = std::chrono::milliseconds(50)}).arrivals.empty());
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(1500));
}

// The others wait for the report of a rank: at most the timeout.
TEST(TimesOfTrial, EndWithTheMeetingBeforeTheTimeout) {
  for (const int timeout : {80, 250, 1000, 5000, 10'000, 1'800'000}) {
    for (const double round_trip : {1e-4, 0.04, 0.2, 100.0}) {
      const std::chrono::milliseconds limit(timeout);
      const TrialTimes times = times_of_trial(round_trip, limit);
      EXPECT_LT(patience_within(limit) + times.wait + times.time, limit) << timeout << " ms, " << round_trip << " s";
      EXPECT_GT(times.wait.count(), 0);
      EXPECT_GT(times.time.count(), 0);
    }
  }
  EXPECT_DOUBLE_EQ(times_of_trial(0.04, std::chrono::minutes(30)).time.count(), 0.2);
}

TEST(MostBytesUnderWay, LeavesAThirdOfTheSendBufferFree) {
  std::ifstream file("/proc/sys/net/ipv4/tcp_wmem");
  double least = 0;
  double initial = 0;
  double most = 0;
  ASSERT_TRUE(file >> least >> initial >> most);
  EXPECT_LE(most_bytes_under_way(), 0.67 * most);
  EXPECT_GE(most_bytes_under_way(), 1e5);
}

}  // namespace
}  // namespace narrowcast::connections
