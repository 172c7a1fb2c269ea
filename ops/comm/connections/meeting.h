// How ranks connect sockets to each other.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "ops/comm/connections/addresses.h"
#include "ops/comm/connections/striped_messages.h"
#include "ops/common/file_descriptor.h"

namespace narrowcast::connections {

using Token = std::array<uint64_t, 2>;

// A rank tells it to the others. A connection that does not begin with the token of the rank that it reaches is closed:
// a stranger does not have it.
struct Card {
  SocketAddress address;
  Token token = {};
};

// A socket on which this rank listens, and its card.
class Listener {
 public:
  // std::system_error if the address is not this machine's, or if there are too many files.
  explicit Listener(const std::string& ip);

  const Card& card() const { return card_; }
  int socket() const { return socket_.get(); }

 private:
  FileDescriptor socket_;
  Card card_;
};

struct MeetingOptions {
  int64_t rank = 0;
  std::vector<int64_t> peers = {};  // Ranks that meet this rank, and have it among their peers.
  int64_t connections = 1;          // With each of them.
  std::chrono::milliseconds patience{0};
};

// Connects to peers of higher rank, and accepts the connections of others. `cards`: by rank. Throws std::runtime_error
// naming a peer that cannot be reached, or that has not connected in time.
SocketsByPeer meet(const Listener& listener, const std::vector<Card>& cards, const MeetingOptions& options);

}  // namespace narrowcast::connections
