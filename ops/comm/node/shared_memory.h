// Memory that processes of one machine share, without a name: whoever has it was handed its descriptor. And the local
// sockets by which ranks find out that they share a machine's network card, and hand each other the memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "ops/common/file_descriptor.h"

namespace narrowcast::node {

// A mapping of such memory. Pages that nobody has written to yet are zeros and cost nothing. When the last process that
// has it ends, in whatever way, nothing of it stays behind.
class SharedMemory {
 public:
  // New memory of `bytes` > 0, which no process can resize, readable by this user alone. std::system_error naming what
  // failed where the system refuses it.
  static SharedMemory create(int64_t bytes);

  // Maps memory that another process has made. std::system_error as above, also for a descriptor of something else.
  static SharedMemory open(FileDescriptor descriptor);

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
  const FileDescriptor& descriptor() const { return descriptor_; }

 private:
  SharedMemory(FileDescriptor descriptor, int64_t bytes);

  FileDescriptor descriptor_;
  int64_t bytes_ = 0;
  std::byte* data_ = nullptr;
};

// The name of a socket, which nobody can guess. It is of the abstract namespace of Linux, of which every network
// namespace has one of its own: whoever can connect shares this process's interfaces. Sockets vanish with the
// processes, and accept those of the same user only.
using SocketName = std::array<uint8_t, 16>;
SocketName random_socket_name();

// Listens under that name; nobody has to accept for others to connect. std::system_error if the system refuses it.
FileDescriptor listen_locally(const SocketName& name);

// A connection to whoever listens under that name as the same user, on which `rank` is told; none if there is nobody.
// std::system_error if the system refuses it for another reason.
FileDescriptor connect_locally(const SocketName& name, int64_t rank);

// The next connection, which is there already, and the rank that it told; nothing if there is none. Connections of
// other users and such that told nothing are closed. std::system_error if the system refuses it.
struct Accepted {
  FileDescriptor connection;
  int64_t rank = 0;
};
std::optional<Accepted> accept_locally(const FileDescriptor& listening);

// Hands `descriptor` to the other end. std::system_error if that is gone.
void send_descriptor(const FileDescriptor& connection, const FileDescriptor& descriptor);

// What the other end has handed over; std::system_error if there is nothing yet.
FileDescriptor receive_descriptor(const FileDescriptor& connection);

// Whether the other end has closed its side, or its process has ended.
bool is_closed(const FileDescriptor& connection);

}  // namespace narrowcast::node
