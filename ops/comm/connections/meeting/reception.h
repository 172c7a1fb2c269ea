// Takes the connections of peers that begin with the right bytes, and turns others away.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "ops/common/file_descriptor.h"

namespace narrowcast::connections {

using Token = std::array<uint64_t, 2>;

// The first bytes of a connection. All ranks have the same byte order.
struct Hello {
  Token token = {};  // The token of the rank that is reached. A stranger does not have it.
  int64_t rank = 0;  // The rank that connects.
  int64_t index = 0;
};

// Reads the first bytes of all new connections at once, so that a connection that sends nothing delays no other. If
// there are more than `most_guests` such connections, the oldest is closed.
class Reception {
 public:
  // `take` is called with each connection that has the token. It moves the socket away if it wants it.
  Reception(const Token& token, size_t most_guests, std::function<void(const Hello&, FileDescriptor&)> take)
      : token_(token), most_guests_(most_guests), take_(std::move(take)) {}

  // The most connections that accept_some accepts. Others may come faster than they are accepted.
  static constexpr int kMostAtOnce = 64;

  // Accepts connections that wait at `listener`, a non-blocking socket. Throws std::system_error if the process has no
  // descriptor or memory left even without the connections that have sent nothing.
  void accept_some(int listener);

  // A non-blocking socket.
  void admit(FileDescriptor socket);

  // The sockets that hear() reads, in its order.
  std::vector<int> sockets() const;

  // Reads what has come from the sockets for which `has_news` is true.
  void hear(const std::vector<bool>& has_news);

 private:
  struct Guest {
    FileDescriptor socket;
    Hello hello = {};
    size_t read = 0;
    bool is_over = false;
  };

  void hear(Guest& guest) const;

  const Token token_;
  const size_t most_guests_;
  const std::function<void(const Hello&, FileDescriptor&)> take_;
  std::deque<Guest> guests_;  // The oldest first.
};

}  // namespace narrowcast::connections
