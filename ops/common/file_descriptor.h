// A file descriptor with an owner.
#pragma once

#include <unistd.h>

#include <utility>

namespace narrowcast {

// Closes its descriptor when it is destroyed or assigned another one. Can be moved, not copied.
class FileDescriptor {
 public:
  // Takes over `descriptor`, which is open, or negative for "none".
  explicit FileDescriptor(int descriptor = -1) : descriptor_(descriptor) {}
  ~FileDescriptor() { close(); }
  FileDescriptor(FileDescriptor&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    if (this != &other) {
      close();
      descriptor_ = std::exchange(other.descriptor_, -1);
    }
    return *this;
  }

  int get() const { return descriptor_; }
  bool is_open() const { return descriptor_ >= 0; }

  // Returns false, with errno set, if the system reports a late write error.
  bool close() {
    const int descriptor = std::exchange(descriptor_, -1);
    return descriptor < 0 || ::close(descriptor) == 0;
  }

 private:
  int descriptor_;
};

}  // namespace narrowcast
