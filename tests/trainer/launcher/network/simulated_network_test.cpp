#include "trainer/launcher/network/simulated_network.h"
#include "ops/common/file_descriptor.h"

#include <arpa/inet.h>
#include <c10/util/Exception.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cmath>
#include <functional>
#include <future>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/error_message.h"
#include "trainer/launcher/network/private_network.h"
#include "trainer/launcher/posix/child_process.h"

namespace narrowcast::launcher {
namespace {

using ::testing::StartsWith;

std::string shape_refusal(const NetworkShape& shape) {
  return testing::error_message<c10::ValueError>([&] { check_shape(shape); });
}

TEST(NetworkShape, IsCheckedByFlag) {
  for (const double gbit : {0.001, 1.0, 100.0}) {
    EXPECT_EQ(shape_refusal({.gbit = gbit, .us = 1e6}), "nothing was thrown") << gbit;
  }
  for (const double gbit : {0.0, -1.0, 1e-4, 101.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    EXPECT_THAT(shape_refusal({.gbit = gbit}), StartsWith("--simulate_gbit=")) << gbit;
  }
  for (const double us : {-1.0, 1e6 + 1, std::nan("")}) {
    EXPECT_THAT(shape_refusal({.gbit = 1, .us = us}), StartsWith("--simulate_us=")) << us;
  }
  EXPECT_EQ(shape_refusal({.gbit = 1000}), "--simulate_gbit=1000: must be from 0.001 to 100 Gbit/s");
}

TEST(NetworkShape, HasAText) {
  EXPECT_EQ(shape_text({.gbit = 0.5}), "0.5 Gbit/s");
  EXPECT_EQ(shape_text({.gbit = 10, .us = 50}), "10 Gbit/s, 50 us");
}

// Measurements in a simulated network, or the reason for their failure.
struct Measured {
  std::vector<double> seconds = {};
  std::string refusal = {};
};

// Runs `measure` in a child process, which enters a private network and makes a simulated one in it.
Measured in_simulated_network(const NetworkShape& shape, int64_t ranks,
                              const std::function<std::vector<double>(const SimulatedNetwork&)>& measure) {
  Pipe pipe = make_pipe();
  const pid_t child = fork();
  if (child == 0) {
    const std::string why = enter_private_network();
    std::string text = why.empty() ? "" : "private: " + why;
    if (why.empty()) {
      try {
        const SimulatedNetwork network(shape, ranks);
        for (const double seconds : measure(network)) {
          text += std::to_string(seconds) + "\n";
        }
      } catch (const c10::Error& error) {
        text = error.what_without_backtrace();
      }
    }
    _exit(write(pipe.write_end.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()) ? 0 : 1);
  }
  pipe.write_end.close();
  std::array<char, 4096> buffer{};
  std::string text;
  for (ssize_t count = 0; (count = read(pipe.read_end.get(), buffer.data(), buffer.size())) > 0;) {
    text.append(buffer.data(), static_cast<size_t>(count));
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  Measured measured;
  if (text.find_first_not_of("0123456789.\n") != std::string::npos) {
    measured.refusal = text;
    return measured;
  }
  std::istringstream lines(text);
  for (double seconds = 0; lines >> seconds;) {
    measured.seconds.push_back(seconds);
  }
  return measured;
}

// Returns whether a test must be skipped: this process may not enter a private network, or this kernel lacks a part of
// it.
bool is_impossible_here(const Measured& measured) {
  const auto has = [&](const char* text) { return measured.refusal.find(text) != std::string::npos; };
  const bool lacks_a_part = has("Operation not supported") || has("No such file or directory");
  return measured.refusal.starts_with("private: ") || has("not permitted") || (has("adding a ") && lacks_a_part);
}

// A TCP socket in a rank's namespace. It stays in that namespace.
FileDescriptor socket_of(const SimulatedNetwork& network, int64_t rank) {
  const FileDescriptor hub(open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
  TORCH_CHECK(setns(network.namespaces().at(static_cast<size_t>(rank)), CLONE_NEWNET) == 0, "setns");
  FileDescriptor made(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  TORCH_CHECK(setns(hub.get(), CLONE_NEWNET) == 0, "setns back");
  return made;
}

sockaddr_in address_of(int64_t rank, uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(ntohl(inet_addr(SimulatedNetwork::kStoreAddress)) + 1 + static_cast<uint32_t>(rank));
  return address;
}

// Both ends of a connection between two ranks.
struct Connection {
  FileDescriptor from;
  FileDescriptor to;
};

Connection connect_ranks(const SimulatedNetwork& network, int64_t from, int64_t to) {
  const FileDescriptor listening = socket_of(network, to);
  sockaddr_in address = address_of(to, 0);
  socklen_t length = sizeof(address);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  TORCH_CHECK(bind(listening.get(), any, length) == 0 && listen(listening.get(), 1) == 0 &&
                  getsockname(listening.get(), any, &length) == 0,
              "listen");
  Connection made{.from = socket_of(network, from), .to = FileDescriptor()};
  TORCH_CHECK(connect(made.from.get(), any, length) == 0, "connect");
  made.to = FileDescriptor(accept(listening.get(), nullptr, nullptr));
  const int on = 1;
  setsockopt(made.from.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  setsockopt(made.to.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  return made;
}

void send_all(const FileDescriptor& socket, size_t bytes) {
  const std::vector<char> data(bytes);
  for (size_t sent = 0; sent < bytes;) {
    const ssize_t count = send(socket.get(), data.data() + sent, bytes - sent, MSG_NOSIGNAL);
    TORCH_CHECK(count > 0, "send");
    sent += static_cast<size_t>(count);
  }
}

void receive_all(const FileDescriptor& socket, size_t bytes) {
  std::vector<char> data(bytes);
  TORCH_CHECK(recv(socket.get(), data.data(), bytes, MSG_WAITALL) == static_cast<ssize_t>(bytes), "recv");
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Seconds until `bytes` have arrived on each of the connections, which are used at once.
double time_to_send(const std::vector<Connection>& connections, size_t bytes) {
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::future<void>> streams;
  for (const Connection& connection : connections) {
    streams.push_back(std::async(std::launch::async, [&connection, bytes] { send_all(connection.from, bytes); }));
    streams.push_back(std::async(std::launch::async, [&connection, bytes] { receive_all(connection.to, bytes); }));
  }
  for (std::future<void>& stream : streams) {
    stream.get();
  }
  return seconds_since(start);
}

// 2 MB take 80 ms at 0.2 Gbit/s.
constexpr NetworkShape kSlow = {.gbit = 0.2};
constexpr size_t kBytes = 2'000'000;

// Least time: a token bucket passes its burst at once, and then limits the rate. Headers only increase the time. The
// smallest burst is 16 KiB; a tenth more accounts for the packet in flight.
double least_seconds(size_t bytes) { return (static_cast<double>(bytes) - 1.1 * (16 << 10)) * 8 / (kSlow.gbit * 1e9); }

TEST(SimulatedNetwork, LimitsWhatARankSendsByOneStreamAndBySeveral) {
  const Measured measured = in_simulated_network(kSlow, 3, [](const SimulatedNetwork& network) {
    std::vector<Connection> one;
    one.push_back(connect_ranks(network, 0, 1));
    std::vector<Connection> several;
    for (const int64_t to : {1, 2, 1, 2}) {
      several.push_back(connect_ranks(network, 0, to));
    }
    return std::vector<double>{time_to_send(one, kBytes), time_to_send(several, kBytes / 4)};
  });
  if (is_impossible_here(measured)) GTEST_SKIP() << measured.refusal;
  ASSERT_EQ(measured.seconds.size(), 2U) << measured.refusal;
  EXPECT_GE(measured.seconds[0], least_seconds(kBytes));
  EXPECT_GE(measured.seconds[1], least_seconds(kBytes));
}

// Two ranks together could send at twice the rate. The switch queues the excess.
TEST(SimulatedNetwork, LimitsWhatARankReceives) {
  const Measured measured = in_simulated_network(kSlow, 3, [](const SimulatedNetwork& network) {
    std::vector<Connection> to_zero;
    to_zero.push_back(connect_ranks(network, 1, 0));
    to_zero.push_back(connect_ranks(network, 2, 0));
    return std::vector<double>{time_to_send(to_zero, kBytes / 2)};
  });
  if (is_impossible_here(measured)) GTEST_SKIP() << measured.refusal;
  ASSERT_EQ(measured.seconds.size(), 1U) << measured.refusal;
  EXPECT_GE(measured.seconds[0], least_seconds(kBytes));
}

// There and back take the delay twice at least. A kernel without delays reports an error.
TEST(SimulatedNetwork, DelaysEachPacketOnce) {
  const NetworkShape delayed = {.gbit = 1, .us = 5000};
  const Measured measured = in_simulated_network(delayed, 2, [](const SimulatedNetwork& network) {
    const Connection connection = connect_ranks(network, 0, 1);
    const auto start = std::chrono::steady_clock::now();
    send_all(connection.from, 1);
    receive_all(connection.to, 1);
    send_all(connection.to, 1);
    receive_all(connection.from, 1);
    return std::vector<double>{seconds_since(start)};
  });
  if (measured.refusal.find("sch_netem") != std::string::npos) {
    EXPECT_THAT(measured.refusal, StartsWith("--simulate_us=5000: adding a delay (sch_netem): "));
    GTEST_SKIP() << measured.refusal;
  }
  if (is_impossible_here(measured)) GTEST_SKIP() << measured.refusal;
  ASSERT_EQ(measured.seconds.size(), 1U) << measured.refusal;
  EXPECT_GE(measured.seconds[0], 2 * 5000e-6);
}

TEST(SimulatedNetwork, RefusesMoreRanksThanASwitchHasPorts) {
  EXPECT_EQ(testing::error_message<c10::ValueError>([] { SimulatedNetwork(kSlow, SimulatedNetwork::kMostRanks + 1); }),
            "--nproc_per_node=1001: a simulated network has from 1 to 1000 ranks");
}

}  // namespace
}  // namespace narrowcast::launcher
