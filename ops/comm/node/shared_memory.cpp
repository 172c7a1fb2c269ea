#include "ops/comm/node/shared_memory.h"
#include "ops/common/file_descriptor.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <system_error>

namespace narrowcast::node {
namespace {

// Without these seals a process could remove pages that another one reads, and end it with SIGBUS.
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;

[[noreturn]] void throw_system_error(int error, const std::string& what) {
  throw std::system_error(error, std::generic_category(), what);
}

// Returns the result of the system call `what`. Throws if it is negative, which means failure.
int checked(int result, const std::string& what) {
  if (result < 0) {
    throw_system_error(errno, what);
  }
  return result;
}

// Checks the limit in advance, because exceeding it raises a signal that ends the process unless it is ignored.
void check_size_limit(int64_t bytes) {
  rlimit limit{};
  checked(::getrlimit(RLIMIT_FSIZE, &limit), "the limit of the size of files");
  if (limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < static_cast<rlim_t>(bytes)) {
    throw_system_error(EFBIG, "shared memory of " + std::to_string(bytes) + " bytes (the size of files is limited to " +
                                  std::to_string(limit.rlim_cur) + ")");
  }
}

// If vm.memfd_noexec is 2, the system only creates files marked as never executable. Kernels before 6.3 do not know
// that mark.
int create_file() {
  constexpr unsigned kNoExecution = 8;  // MFD_NOEXEC_SEAL, which older headers lack.
  constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  const int file = ::memfd_create("narrowcast", kFlags | kNoExecution);
  return file >= 0 || errno != EINVAL ? file : ::memfd_create("narrowcast", kFlags);
}

struct Address {
  sockaddr_un address{};
  socklen_t size = 0;
};

// A first byte of zero makes the name abstract. The hexadecimal digits are for users who list sockets.
Address address_of(const SocketName& name) {
  constexpr std::array<char, 17> kDigits{"0123456789abcdef"};
  constexpr std::array<char, 12> kPrefix{"narrowcast-"};
  Address address;
  address.address.sun_family = AF_UNIX;
  char* next = address.address.sun_path + 1;
  next = std::copy(kPrefix.begin(), kPrefix.end() - 1, next);
  for (const uint8_t byte : name) {
    *next++ = kDigits[byte / 16];
    *next++ = kDigits[byte % 16];
  }
  address.size = static_cast<socklen_t>(next - reinterpret_cast<char*>(&address.address));
  return address;
}

FileDescriptor open_socket() {
  FileDescriptor opened(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!opened.is_open()) {
    throw_system_error(errno, "a local socket");
  }
  return opened;
}

bool is_of_this_user(const FileDescriptor& connection) {
  ucred other{};
  socklen_t size = sizeof other;
  return ::getsockopt(connection.get(), SOL_SOCKET, SO_PEERCRED, &other, &size) == 0 && other.uid == ::geteuid();
}

// One byte with a descriptor attached.
struct DescriptorMessage {
  char byte = 0;
  iovec content{&byte, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr header{};

  DescriptorMessage() {
    header.msg_iov = &content;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = control.size();
  }
};

}  // namespace

SharedMemory SharedMemory::create(int64_t bytes) {
  check_size_limit(bytes);
  FileDescriptor descriptor(checked(create_file(), "memfd_create"));
  checked(::fchmod(descriptor.get(), S_IRUSR | S_IWUSR), "fchmod of shared memory");
  checked(::ftruncate(descriptor.get(), bytes), "shared memory of " + std::to_string(bytes) + " bytes");
  checked(::fcntl(descriptor.get(), F_ADD_SEALS, kSeals), "F_ADD_SEALS of shared memory");
  return SharedMemory(std::move(descriptor), bytes);
}

SharedMemory SharedMemory::open(FileDescriptor descriptor) {
  const int seals = checked(::fcntl(descriptor.get(), F_GET_SEALS), "F_GET_SEALS of shared memory");
  if ((seals & kSeals) != kSeals) {
    throw_system_error(EINVAL, "shared memory that can be resized");
  }
  struct stat status {};
  checked(::fstat(descriptor.get(), &status), "fstat of shared memory");
  const int64_t bytes = status.st_size;
  return SharedMemory(std::move(descriptor), bytes);
}

SharedMemory::SharedMemory(FileDescriptor descriptor, int64_t bytes)
    : descriptor_(std::move(descriptor)), bytes_(bytes) {
  void* const address = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
                               descriptor_.get(), 0);
  if (address == MAP_FAILED) {
    throw_system_error(errno, "mmap of " + std::to_string(bytes) + " bytes of shared memory");
  }
  data_ = static_cast<std::byte*>(address);
  // Both calls are advice: a refusal only costs time and larger core files.
  static_cast<void>(::madvise(address, static_cast<size_t>(bytes), MADV_HUGEPAGE));
  static_cast<void>(::madvise(address, static_cast<size_t>(bytes), MADV_DONTDUMP));
}

// The call is advice: a process that has locked its memory keeps it and continues.
void SharedMemory::give_back(int64_t begin, int64_t bytes) const {
  if (bytes > 0) {
    static_cast<void>(::madvise(data_ + begin, static_cast<size_t>(bytes), MADV_REMOVE));
  }
}

void SharedMemory::allocate(int64_t begin, int64_t bytes) const {
  while (bytes > 0 && ::fallocate(descriptor_.get(), 0, begin, bytes) != 0) {
    if (errno != EINTR) {
      throw_system_error(errno, "allocating " + std::to_string(bytes) + " bytes of shared memory");
    }
  }
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : descriptor_(std::move(other.descriptor_)),
      bytes_(std::exchange(other.bytes_, 0)),
      data_(std::exchange(other.data_, nullptr)) {}

SharedMemory::~SharedMemory() {
  if (data_ != nullptr) {
    ::munmap(data_, static_cast<size_t>(bytes_));
  }
}

void check_available(int64_t bytes) {
  std::ifstream file("/proc/meminfo");
  std::string name;
  int64_t kilobytes = 0;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    if (words >> name >> kilobytes && name == "MemAvailable:" && bytes > kilobytes * 1024) {
      throw_system_error(ENOMEM, "shared memory of " + std::to_string(bytes) + " bytes (" +
                                     std::to_string(kilobytes * 1024) + " bytes are available)");
    }
  }
}

SocketName random_socket_name() {
  std::random_device random;
  SocketName name;
  std::generate(name.begin(), name.end(), [&] { return static_cast<uint8_t>(random()); });
  return name;
}

FileDescriptor listen_locally(const SocketName& name) {
  constexpr int kBacklog = 4096;  // All ranks of a node may connect before one is accepted.
  FileDescriptor listening = open_socket();
  const Address address = address_of(name);
  if (::bind(listening.get(), reinterpret_cast<const sockaddr*>(&address.address), address.size) != 0 ||
      ::listen(listening.get(), kBacklog) != 0) {
    throw_system_error(errno, "a local socket to listen on");
  }
  return listening;
}

FileDescriptor connect_locally(const SocketName& name, int64_t rank) {
  FileDescriptor connection = open_socket();
  const Address address = address_of(name);
  if (::connect(connection.get(), reinterpret_cast<const sockaddr*>(&address.address), address.size) != 0) {
    if (errno != ECONNREFUSED) {
      throw_system_error(errno, "a local connection");
    }
    return FileDescriptor();
  }
  if (!is_of_this_user(connection) ||
      ::send(connection.get(), &rank, sizeof rank, MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof rank)) {
    return FileDescriptor();
  }
  return connection;
}

std::optional<Accepted> accept_locally(const FileDescriptor& listening) {
  while (true) {
    Accepted accepted{FileDescriptor(::accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK))};
    if (!accepted.connection.is_open()) {
      if (errno == EINTR || errno == ECONNABORTED) {
        continue;
      }
      if (errno == EAGAIN || errno == EWOULDBLOCK) {
        return std::nullopt;
      }
      throw_system_error(errno, "accepting a local connection");
    }
    if (is_of_this_user(accepted.connection) && ::recv(accepted.connection.get(), &accepted.rank, sizeof accepted.rank,
                                                       0) == static_cast<ssize_t>(sizeof accepted.rank)) {
      return accepted;
    }
  }
}

void send_descriptor(const FileDescriptor& connection, const FileDescriptor& descriptor) {
  DescriptorMessage message;
  cmsghdr* const control = CMSG_FIRSTHDR(&message.header);
  control->cmsg_level = SOL_SOCKET;
  control->cmsg_type = SCM_RIGHTS;
  control->cmsg_len = CMSG_LEN(sizeof(int));
  const int number = descriptor.get();
  std::memcpy(CMSG_DATA(control), &number, sizeof number);
  if (::sendmsg(connection.get(), &message.header, MSG_NOSIGNAL) != 1) {
    throw_system_error(errno, "handing over shared memory");
  }
}

FileDescriptor receive_descriptor(const FileDescriptor& connection) {
  DescriptorMessage message;
  const ssize_t received = ::recvmsg(connection.get(), &message.header, MSG_CMSG_CLOEXEC);
  if (received != 1) {
    throw_system_error(received == 0 ? ECONNRESET : errno, "taking over shared memory");
  }
  const cmsghdr* const control = CMSG_FIRSTHDR(&message.header);
  if (control == nullptr || control->cmsg_type != SCM_RIGHTS || control->cmsg_len != CMSG_LEN(sizeof(int))) {
    throw_system_error(EBADMSG, "taking over shared memory");
  }
  int number = -1;
  std::memcpy(&number, CMSG_DATA(control), sizeof number);
  return FileDescriptor(number);
}

bool is_closed(const FileDescriptor& connection) {
  pollfd polled{connection.get(), POLLRDHUP, 0};
  return ::poll(&polled, 1, 0) > 0 && (polled.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)) != 0;
}

}  // namespace narrowcast::node
