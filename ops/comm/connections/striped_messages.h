// Messages between this rank and its peers over several sockets per peer.
//
// Gloo sends the bytes of a message only after the receiver has told that it is ready, and all over one connection. On
// a long link this costs one flight more per message. Here a sender does not wait. A message is cut into frames, and
// each frame goes to the peer's next socket that has room. A frame carries its place, so that the order of arrival does
// not matter.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "ops/common/file_descriptor.h"

namespace narrowcast::connections {

using SocketsByPeer = std::map<int64_t, std::vector<FileDescriptor>>;

// Owns the sockets, and a thread that reads and writes them. Thread-safe.
//
// A message that arrives before its receive is posted is kept in memory, so that no socket waits for a late rank. Ranks
// are ahead of each other by at most the exchanges that an engine has in flight.
//
// Works throw std::runtime_error, as Gloo's do. If a socket of a peer fails, all messages with that peer fail: the peer
// is lost. A peer that has closed all its sockets is lost as well, but complete messages from it can still be received.
class StripedMessages {
 public:
  struct Options {
    // Time limit of a wait that gives none.
    std::function<std::chrono::milliseconds()> timeout;
    // Called about ten times a second. If it returns true, nobody can use the messages any more, and the sockets close.
    // Peers then find out that this rank has left its group.
    std::function<bool()> is_over = [] { return false; };
  };

  // The sockets are connected, at least one for each peer.
  StripedMessages(SocketsByPeer sockets, const Options& options);
  // Closes the sockets. The kernel still sends what has been written.
  ~StripedMessages();
  StripedMessages(const StripedMessages&) = delete;
  StripedMessages& operator=(const StripedMessages&) = delete;

  // Sends bytes: uint8, contiguous, on the CPU. They must not change before the work is done, when the kernel has them.
  c10::intrusive_ptr<c10d::Work> send(int64_t peer, int64_t tag, const at::Tensor& bytes);

  // Receives the peer's next message with that tag, which must have as many bytes.
  c10::intrusive_ptr<c10d::Work> receive(int64_t peer, int64_t tag, const at::Tensor& bytes);

  // Closes the sockets: all messages that are not complete fail with `why`, also later ones.
  void close(const std::string& why);

  bool has_lost_peers() const;

 private:
  class Io;

  const std::shared_ptr<Io> io_;
  std::thread thread_;
};

}  // namespace narrowcast::connections
