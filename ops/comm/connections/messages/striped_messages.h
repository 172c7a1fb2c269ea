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
// A message that arrives before its receive is posted is kept in memory, so that no socket waits for a late rank. This
// memory is bounded (Options::most_early_bytes). Once it is full, senders wait for receives.
//
// Works throw std::runtime_error, as Gloo's do. If a socket of a peer fails, all messages with that peer fail: the peer
// is lost. A peer whose sockets have ended, or one of them, is lost as well: nothing can be sent to it any more. But
// messages from it that have arrived, or are on the way in other sockets, can still be received, unless a frame was
// cut.
class StripedMessages {
 public:
  // News of the group from elsewhere.
  struct News {
    std::string over = {};           // If not empty: why nobody can use the messages any more. All sockets close.
    std::vector<int64_t> left = {};  // Peers that have ended: they send nothing more.
  };
  struct Options {
    // Time limit of a wait that gives none.
    std::function<std::chrono::milliseconds()> timeout;
    // Called about ten times a second on the sockets' thread, until News::over.
    std::function<News()> look = [] { return News{}; };
    // Called at least once after a wait has timed out, a socket has failed, or wrong bytes have come; on any thread. It
    // is not called for a peer that has ended.
    std::function<void()> on_failure = [] {};
    // The most memory of messages without a receive, in equal parts for the peers.
    int64_t most_early_bytes = int64_t{1} << 28;
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
