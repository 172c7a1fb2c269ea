// Two StripedMessages that are connected with each other.
#pragma once

#include <ATen/ops/randint.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "ops/comm/connections/messages/striped_messages.h"
#include "tests/support/patience.h"

namespace narrowcast::connections {

inline constexpr int64_t kPeer = 7;  // The number that each side gives to the other.

inline std::pair<FileDescriptor, FileDescriptor> connected_pair() {
  std::array<int, 2> ends{};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()), 0);
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

inline StripedMessages::Options patient() {
  return {.timeout = [] { return testing::kPatience; }};
}

inline std::unique_ptr<StripedMessages> messages_over(std::vector<FileDescriptor> sockets,
                                                      const StripedMessages::Options& options = patient()) {
  SocketsByPeer by_peer;
  by_peer[kPeer] = std::move(sockets);
  return std::make_unique<StripedMessages>(std::move(by_peer), options);
}

struct TwoEnds {
  explicit TwoEnds(int64_t count, const StripedMessages::Options& options = patient()) {
    std::vector<FileDescriptor> firsts;
    std::vector<FileDescriptor> seconds;
    for (int64_t i = 0; i < count; ++i) {
      auto [one, other] = connected_pair();
      firsts.push_back(std::move(one));
      seconds.push_back(std::move(other));
    }
    first = messages_over(std::move(firsts), options);
    second = messages_over(std::move(seconds), options);
  }
  std::unique_ptr<StripedMessages> first;
  std::unique_ptr<StripedMessages> second;
};

inline at::Tensor random_bytes(int64_t count) { return at::randint(256, {count}, at::kByte); }
inline at::Tensor empty_bytes(int64_t count) { return at::zeros({count}, at::kByte); }

}  // namespace narrowcast::connections
