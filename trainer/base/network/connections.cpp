#include "trainer/base/network/connections.h"

#include <sys/socket.h>
#include <sys/stat.h>

#include <charconv>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>

namespace narrowcast::network {
namespace {

std::optional<uint64_t> inode_of_socket(int descriptor) {
  struct stat status {};
  const bool is_socket = fstat(descriptor, &status) == 0 && S_ISSOCK(status.st_mode);
  return is_socket ? std::optional<uint64_t>(status.st_ino) : std::nullopt;
}

bool is_tcp_connection(int descriptor) {
  int type = 0;
  socklen_t size = sizeof(type);
  sockaddr_storage peer{};
  socklen_t peer_size = sizeof(peer);
  return getsockopt(descriptor, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_STREAM &&
         getpeername(descriptor, reinterpret_cast<sockaddr*>(&peer), &peer_size) == 0 &&
         (peer.ss_family == AF_INET || peer.ss_family == AF_INET6);
}

}  // namespace

Connections Connections::of_this_process() {
  Connections found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", error)) {
    const std::string name = entry.path().filename();
    int descriptor = -1;
    std::from_chars(name.data(), name.data() + name.size(), descriptor);
    const std::optional<uint64_t> inode = inode_of_socket(descriptor);
    if (inode.has_value() && is_tcp_connection(descriptor)) {
      found.inodes_[descriptor] = *inode;
    }
  }
  return found;
}

Connections Connections::without(const Connections& others) const {
  Connections rest = *this;
  std::erase_if(rest.inodes_, [&](const auto& entry) {
    const auto found = others.inodes_.find(entry.first);
    return found != others.inodes_.end() && found->second == entry.second;
  });
  return rest;
}

void Connections::shut_down() const {
  for (const auto& [descriptor, inode] : inodes_) {
    if (inode_of_socket(descriptor) == inode) {
      shutdown(descriptor, SHUT_RDWR);
    }
  }
}

}  // namespace narrowcast::network
