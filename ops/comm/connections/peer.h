// The messages between this rank and one peer, over several sockets.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ops/comm/connections/message.h"
#include "ops/common/file_descriptor.h"

namespace narrowcast::connections {

// The beginning of each frame. All ranks have the same byte order.
struct FrameHeader {
  uint64_t mark = 0;    // kFrameMark
  uint64_t number = 0;  // The message's, among those that its sender has sent to this receiver.
  int64_t tag = 0;
  int64_t total = 0;  // Bytes of the message.
  int64_t begin = 0;  // Place of the frame's bytes in the message.
  int64_t bytes = 0;  // Bytes of the frame, which follow.

  // Whether the numbers can be those of a frame.
  bool is_valid() const;
};

inline constexpr uint64_t kFrameMark = 0x6E6366726D000001;
inline constexpr int64_t kMostFrameBytes = int64_t{1} << 16;

class Peer;

// One socket, and the frames that it is writing and reading.
struct Connection {
  Peer* peer = nullptr;
  FileDescriptor socket;
  bool wants_room = false;  // Peer::write is called when the socket has room.
  // The frame that is being written, if any.
  MessagePtr sent;
  FrameHeader sent_header;
  int64_t written = 0;  // Bytes of the header and of the frame.
  // The header that is being read or, with a message, the frame after it.
  MessagePtr received;
  FrameHeader header;
  int64_t header_read = 0;
  int64_t frame_read = 0;

  bool is_within_frame() const { return sent != nullptr || received != nullptr || header_read > 0; }
};

// The caller holds the mutex of Waiting.
class Peer {
 public:
  // It calls write and read.
  struct Poller {
    std::function<void(Connection&)> update;  // After a change of wants_room.
    std::function<void(Connection&)> forget;  // Before the socket is closed.
  };

  Peer(std::vector<FileDescriptor> sockets, std::shared_ptr<Waiting> waiting, Poller poller);
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  std::vector<Connection>& connections() { return connections_; }

  // See StripedMessages. Throw std::runtime_error if the peer is lost.
  MessagePtr send(int64_t tag, const at::Tensor& bytes);
  MessagePtr receive(int64_t tag, const at::Tensor& bytes);

  // For a socket that has room, and for one that has bytes or has ended. Other sockets get their turn after some bytes.
  void write(Connection& connection);
  void read(Connection& connection);

  // Closes the sockets. All messages that are not complete fail, also later ones. The first reason counts.
  void lose(const std::string& why);
  bool is_lost() const { return !failure_.empty(); }

  // Frees messages that came early.
  void drop_early() { early_.clear(); }

 private:
  // A message of which frames are still to be given to sockets.
  struct Outgoing {
    MessagePtr message;
    FrameHeader next;
    int64_t frame_bytes = 0;
  };

  void check_usable() const;
  void close(Connection& connection) const;
  bool take_frame(Connection& connection);
  void begin_frame(Connection& connection);
  void end_frame(Connection& connection);
  MessagePtr message_of(const FrameHeader& header);
  void end_connection(Connection& connection);
  void lose_unless_interrupted(const char* action);

  const std::shared_ptr<Waiting> waiting_;
  const Poller poller_;
  std::vector<Connection> connections_;
  const std::string address_;
  std::string failure_;  // Why it is lost; empty if it is not.
  uint64_t sent_ = 0;    // Number of messages.
  std::deque<Outgoing> outgoing_;
  std::map<int64_t, std::deque<MessagePtr>> posted_;  // By tag: receives of which nothing has come.
  std::map<int64_t, std::deque<MessagePtr>> early_;   // By tag: messages without a receive.
  std::map<uint64_t, MessagePtr> arriving_;           // By number: messages of which frames have come.
};

}  // namespace narrowcast::connections
