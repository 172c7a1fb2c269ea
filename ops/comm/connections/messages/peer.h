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

#include "ops/comm/connections/messages/message.h"
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
inline constexpr int64_t kMostMessageBytes = int64_t{1} << 40;

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
  bool is_parked = false;  // It has a header, and is not read until the frame's message may have memory.

  bool reads_frame() const { return received != nullptr || header_read > 0; }
};

// The caller holds the mutex of Waiting.
//
// Messages without a receive have at most `most_early` bytes of memory. A socket whose next frame is of a message that
// would need more is parked: it is not read, so that TCP stops the sender. A receive for that message, or for an early
// one, lets it go on. This is no deadlock. A parked socket holds back only later messages than its own, because a
// sender gives frames to sockets in the order of messages. And no receive waits for a later message: an exchange posts
// its receives when it starts. A message that was sent before one of exchange x belongs to x, to an earlier exchange,
// or to one of the next that are in flight beside x. The engine starts these as well while it waits for x, as
// engine.h's last rule says.
class Peer {
 public:
  // It calls write and read.
  struct Poller {
    std::function<void(Connection&)> update;  // After a change of wants_room or is_parked.
    std::function<void(Connection&)> forget;  // Before the socket is closed.
  };

  Peer(std::vector<FileDescriptor> sockets, std::shared_ptr<Waiting> waiting, Poller poller, int64_t most_early);
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
  // Whether it is lost, or one of its sockets has ended.
  bool is_lost() const { return !failure_.empty() || !why_no_sends_.empty(); }
  // Whether a socket has failed or brought wrong bytes. It is false for a peer that has ended.
  bool has_failed() const { return has_failed_; }

  // Like lose, for a socket that has failed or wrong bytes.
  void fail(const std::string& why);

  // The peer sends nothing more. Its last bytes are read although they need more memory, and then the end of the
  // sockets. The peer is lost if a message is larger than what can be on the way.
  void has_left();

  // Frees messages that came early.
  void drop_early();

 private:
  // A message of which frames are still to be given to sockets.
  struct Outgoing {
    MessagePtr message;
    FrameHeader next;
    int64_t frame_bytes = 0;
  };

  void check_usable() const;
  void end_sending();
  void fail_sends(const std::string& why);
  void close(Connection& connection) const;
  bool take_frame(Connection& connection);
  void park(Connection& connection) const;
  void resume_parked();
  void begin_frame(Connection& connection);
  void end_frame(Connection& connection);
  MessagePtr message_of(const FrameHeader& header);
  void end_connection(Connection& connection);
  void lose_unless_interrupted(const char* action);
  std::string text_of_end() const;

  const std::shared_ptr<Waiting> waiting_;
  const Poller poller_;
  std::vector<Connection> connections_;
  const std::string address_;
  const int64_t most_early_;
  int64_t early_bytes_ = 0;  // Bytes of messages without a receive.
  bool has_left_ = false;
  std::string why_no_sends_;  // Why nothing can be sent any more; empty if that is possible.
  std::string failure_;       // Why it is lost; empty if it is not.
  bool has_failed_ = false;
  uint64_t sent_ = 0;  // Number of messages.
  std::deque<Outgoing> outgoing_;
  std::map<int64_t, std::deque<MessagePtr>> posted_;  // By tag: receives of which nothing has come.
  std::map<int64_t, std::deque<MessagePtr>> early_;   // By tag: messages without a receive.
  std::map<uint64_t, MessagePtr> arriving_;           // By number: messages of which frames have come.
};

}  // namespace narrowcast::connections
