#include "ops/node/local_socket.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>
#include <system_error>

namespace narrowcast::node {
namespace {

struct Address {
  sockaddr_un address{};
  socklen_t size = 0;
};

// A first byte of zero makes it an abstract name; the hexadecimal digits are for people who list sockets.
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

[[noreturn]] void throw_system_error(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

Descriptor open_socket() {
  Descriptor opened(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!opened) {
    throw_system_error("a local socket");
  }
  return opened;
}

bool is_of_this_user(const Descriptor& connection) {
  ucred other{};
  socklen_t size = sizeof other;
  return ::getsockopt(connection.number(), SOL_SOCKET, SO_PEERCRED, &other, &size) == 0 && other.uid == ::geteuid();
}

// One byte with a descriptor beside it.
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

SocketName random_socket_name() {
  std::random_device random;
  SocketName name;
  std::generate(name.begin(), name.end(), [&] { return static_cast<uint8_t>(random()); });
  return name;
}

Descriptor listen_locally(const SocketName& name) {
  constexpr int kBacklog = 4096;  // All ranks of a node may come before one is accepted.
  Descriptor listening = open_socket();
  const Address address = address_of(name);
  if (::bind(listening.number(), reinterpret_cast<const sockaddr*>(&address.address), address.size) != 0 ||
      ::listen(listening.number(), kBacklog) != 0) {
    throw_system_error("a local socket to listen on");
  }
  return listening;
}

Descriptor connect_locally(const SocketName& name, int64_t rank) {
  Descriptor connection = open_socket();
  const Address address = address_of(name);
  if (::connect(connection.number(), reinterpret_cast<const sockaddr*>(&address.address), address.size) != 0) {
    if (errno != ECONNREFUSED) {
      throw_system_error("a local connection");
    }
    return {};
  }
  if (!is_of_this_user(connection) ||
      ::send(connection.number(), &rank, sizeof rank, MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof rank)) {
    return {};
  }
  return connection;
}

std::optional<Accepted> accept_locally(const Descriptor& listening) {
  while (true) {
    Accepted accepted{Descriptor(::accept4(listening.number(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK))};
    if (!accepted.connection) {
      if (errno == EINTR || errno == ECONNABORTED) {
        continue;
      }
      if (errno == EAGAIN || errno == EWOULDBLOCK) {
        return std::nullopt;
      }
      throw_system_error("accepting a local connection");
    }
    if (is_of_this_user(accepted.connection) &&
        ::recv(accepted.connection.number(), &accepted.rank, sizeof accepted.rank, 0) ==
            static_cast<ssize_t>(sizeof accepted.rank)) {
      return accepted;
    }
  }
}

void send_descriptor(const Descriptor& connection, const Descriptor& descriptor) {
  DescriptorMessage message;
  cmsghdr* const control = CMSG_FIRSTHDR(&message.header);
  control->cmsg_level = SOL_SOCKET;
  control->cmsg_type = SCM_RIGHTS;
  control->cmsg_len = CMSG_LEN(sizeof(int));
  const int number = descriptor.number();
  std::memcpy(CMSG_DATA(control), &number, sizeof number);
  if (::sendmsg(connection.number(), &message.header, MSG_NOSIGNAL) != 1) {
    throw_system_error("handing over shared memory");
  }
}

Descriptor receive_descriptor(const Descriptor& connection) {
  DescriptorMessage message;
  const ssize_t received = ::recvmsg(connection.number(), &message.header, MSG_CMSG_CLOEXEC);
  if (received != 1) {
    errno = received == 0 ? ECONNRESET : errno;
    throw_system_error("taking over shared memory");
  }
  const cmsghdr* const control = CMSG_FIRSTHDR(&message.header);
  if (control == nullptr || control->cmsg_type != SCM_RIGHTS || control->cmsg_len != CMSG_LEN(sizeof(int))) {
    errno = EBADMSG;
    throw_system_error("taking over shared memory");
  }
  int number = -1;
  std::memcpy(&number, CMSG_DATA(control), sizeof number);
  return Descriptor(number);
}

bool is_closed(const Descriptor& connection) {
  pollfd polled{connection.number(), POLLRDHUP, 0};
  return ::poll(&polled, 1, 0) > 0 && (polled.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)) != 0;
}

}  // namespace narrowcast::node
