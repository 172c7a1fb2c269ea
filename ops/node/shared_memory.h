// Memory that processes of one machine share, without a name: whoever has it was handed its descriptor.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <utility>

namespace narrowcast::node {

// A file descriptor that closes itself.
class Descriptor {
 public:
  // None.
  Descriptor() = default;
  // Takes over `number`, which is open, or negative for none.
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() { reset(); }
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    if (this != &other) {
      reset();
      number_ = std::exchange(other.number_, -1);
    }
    return *this;
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  explicit operator bool() const { return number_ >= 0; }
  int number() const { return number_; }
  void reset() {
    if (number_ >= 0) {
      ::close(number_);
    }
    number_ = -1;
  }

 private:
  int number_ = -1;
};

// A mapping of such memory. Pages that nobody has written to yet are zeros and cost nothing. When the last process that
// has it ends, in whatever way, nothing of it stays behind.
class SharedMemory {
 public:
  // New memory of `bytes` > 0, which no process can resize, readable by this user alone. std::system_error naming what
  // failed where the system refuses it.
  static SharedMemory create(int64_t bytes);

  // Maps memory that another process has made. std::system_error as above, also for a descriptor of something else.
  static SharedMemory open(Descriptor descriptor);

  ~SharedMemory();
  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&&) = delete;
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  // Aligned to a page at least.
  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

  // Gives whole pages back to the system; they are zeros again. Both numbers are multiples of a page; nobody reads or
  // writes there meanwhile.
  void give_back(int64_t begin, int64_t bytes) const;

  // To be handed to other processes.
  const Descriptor& descriptor() const { return descriptor_; }

 private:
  SharedMemory(Descriptor descriptor, int64_t bytes);

  Descriptor descriptor_;
  int64_t bytes_ = 0;
  std::byte* data_ = nullptr;
};

}  // namespace narrowcast::node
