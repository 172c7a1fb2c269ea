// Unnamed memory that processes of one machine share by its descriptor, and the local sockets that pass the descriptor.
// By these sockets ranks also find out that they share a machine's NICs.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "ops/common/file_descriptor.h"

namespace narrowcast::node {

// A mapping of shared memory. Pages that were never written contain zeros and cost nothing. The memory is freed when
// the last process that has it ends, even after a crash.
class SharedMemory {
 public:
  // Makes memory of `bytes` > 0 that no process can resize and only this user can read. Throws std::system_error naming
  // the failed step if the system refuses it.
  static SharedMemory create(int64_t bytes);

  // Maps memory that another process has made. Throws std::system_error like create, and for a descriptor of anything
  // else.
  static SharedMemory open(FileDescriptor descriptor);

  ~SharedMemory();
  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&&) = delete;
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  // Aligned at least to a page.
  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

  // Returns whole pages to the system; they read as zeros afterwards. Both numbers are multiples of a page. No process
  // may use the pages during the call.
  void give_back(int64_t begin, int64_t bytes) const;

  // Allocates the pages of that range, near this thread's processor: a later write to them cannot fail for lack of
  // memory. Throws std::system_error naming the bytes if the system has no memory for them.
  void allocate(int64_t begin, int64_t bytes) const;

  // For other processes.
  const FileDescriptor& descriptor() const { return descriptor_; }

 private:
  SharedMemory(FileDescriptor descriptor, int64_t bytes);

  FileDescriptor descriptor_;
  int64_t bytes_ = 0;
  std::byte* data_ = nullptr;
};

// Throws std::system_error naming both numbers of bytes if the machine has less memory available than `bytes`
// (MemAvailable of /proc/meminfo). Where that number is unknown, it does nothing. Shared memory needs the check: the
// system grants any size, and ends a process when pages run out. The size of /dev/shm does not matter.
void check_available(int64_t bytes);

// A random name of a socket in Linux's abstract namespace. Each network namespace has a separate one, so a process that
// can connect shares this process's interfaces. The sockets vanish with their processes, and accept only processes of
// the same user.
using SocketName = std::array<uint8_t, 16>;
SocketName random_socket_name();

// Listens under that name. Others can connect before accept_locally is called. Throws std::system_error if the system
// refuses it.
FileDescriptor listen_locally(const SocketName& name);

// Connects to a process of the same user that listens under that name, and sends `rank`. Returns a closed descriptor if
// there is no such process. Throws std::system_error if the system refuses it for another reason.
FileDescriptor connect_locally(const SocketName& name, int64_t rank);

// Returns the next connection that was made, with the rank that was sent on it; nothing if there is no connection.
// Connections of other users, and connections without a rank, are closed. Throws std::system_error if the system
// refuses it.
struct Accepted {
  FileDescriptor connection;
  int64_t rank = 0;
};
std::optional<Accepted> accept_locally(const FileDescriptor& listening);

// Sends `descriptor` to the other end. Throws std::system_error if the other end is gone.
void send_descriptor(const FileDescriptor& connection, const FileDescriptor& descriptor);

// Receives a descriptor. Throws std::system_error if none was sent yet.
FileDescriptor receive_descriptor(const FileDescriptor& connection);

// Returns whether the other end has closed the connection, or its process has ended.
bool is_closed(const FileDescriptor& connection);

}  // namespace narrowcast::node
