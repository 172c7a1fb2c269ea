// Memory that processes of one machine share, without a name: whoever has it was handed its descriptor.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/node/descriptor.h"

namespace narrowcast::node {

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

  // To be handed to other processes.
  const Descriptor& descriptor() const { return descriptor_; }

 private:
  SharedMemory(Descriptor descriptor, int64_t bytes);

  Descriptor descriptor_;
  int64_t bytes_ = 0;
  std::byte* data_ = nullptr;
};

}  // namespace narrowcast::node
