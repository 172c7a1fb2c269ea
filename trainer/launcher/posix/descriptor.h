// A file descriptor with an owner.
#pragma once

#include <unistd.h>

#include <utility>

namespace narrowcast::launcher {

// Closes its descriptor when it goes. Moves, does not copy.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() { close(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  void close() {
    if (fd_ >= 0) {
      ::close(std::exchange(fd_, -1));
    }
  }

 private:
  int fd_;
};

// The two ends of a pipe.
struct Pipe {
  Descriptor read_end;
  Descriptor write_end;
};

// A pipe whose ends programs started later do not inherit. Throws c10::Error.
Pipe make_pipe();

}  // namespace narrowcast::launcher
