// How ranks connect sockets to each other.
#pragma once

#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "ops/comm/connections/meeting/reception.h"
#include "ops/comm/connections/messages/addresses.h"
#include "ops/comm/connections/messages/striped_messages.h"
#include "ops/common/file_descriptor.h"

namespace narrowcast::connections {

// A rank tells it to the others. A connection that does not begin with the token of the rank that it reaches is closed.
struct Card {
  SocketAddress address;
  Token token = {};
};

// Options of new connections. They are set before the first packet.
struct SocketOptions {
  std::string congestion_control = {};  // For example "reno"; empty: the system's.
  bool keeps_times = false;             // Whether the kernel keeps when each packet arrives (SO_TIMESTAMPNS).
};

// A socket on which this rank listens, its card, and an event that stops the rank's meeting.
class Listener {
 public:
  // `options` of accepted connections. std::system_error if the address is not this machine's, or if there are too many
  // files.
  explicit Listener(const std::string& ip, const SocketOptions& options = {});

  const Card& card() const { return card_; }
  int socket() const { return socket_.get(); }
  int stop_event() const { return stop_.get(); }

  // The meeting in progress, if any, and later ones throw MeetingStopped. Thread-safe.
  void stop_meeting() const;

 private:
  FileDescriptor socket_;
  FileDescriptor stop_;
  Card card_;
};

struct MeetingOptions {
  int64_t rank = 0;
  std::vector<int64_t> peers = {};  // Ranks that meet this rank, and have it among their peers.
  int64_t connections = 1;          // With each of them.
  std::chrono::milliseconds patience{0};
  SocketOptions sockets = {};  // Of connections that this rank opens.
};

// Listener::stop_meeting has ended the meeting.
struct MeetingStopped final : std::runtime_error {
  MeetingStopped() : std::runtime_error("the meeting was stopped") {}
};

// Connects to peers of higher rank, and accepts the connections of others. `cards`: by rank. Throws std::runtime_error
// naming a peer that cannot be reached, or that has not connected in time. Strangers that connect delay it by nothing.
SocketsByPeer meet(const Listener& listener, const std::vector<Card>& cards, const MeetingOptions& options);

}  // namespace narrowcast::connections
