#include "ops/comm/connections/meeting/reception.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

namespace narrowcast::connections {

namespace {

// A connection stays in the listener's queue, which has news at once again.
bool is_lack(int error) { return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM; }

}  // namespace

void Reception::accept_some(int listener) {
  for (int i = 0; i < kMostAtOnce; ++i) {
    FileDescriptor socket(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket.is_open()) {
      admit(std::move(socket));
    } else if (!is_lack(errno)) {
      return;
    } else if (guests_.empty()) {
      throw std::system_error(errno, std::generic_category(), "accept");
    } else {
      guests_.pop_front();
    }
  }
}

void Reception::admit(FileDescriptor socket) {
  if (guests_.size() == most_guests_) guests_.pop_front();
  guests_.push_back({.socket = std::move(socket)});
  hear(guests_.back());  // Most send their first bytes at once.
  if (guests_.back().is_over) guests_.pop_back();
}

std::vector<int> Reception::sockets() const {
  std::vector<int> sockets;
  for (const Guest& guest : guests_) sockets.push_back(guest.socket.get());
  return sockets;
}

void Reception::hear(const std::vector<bool>& has_news) {
  for (size_t i = 0; i < guests_.size(); ++i) {
    if (has_news.at(i)) hear(guests_[i]);
  }
  std::erase_if(guests_, [](const Guest& guest) { return guest.is_over; });
}

void Reception::hear(Guest& guest) const {
  auto* const bytes = reinterpret_cast<char*>(&guest.hello);
  const ssize_t count = ::recv(guest.socket.get(), bytes + guest.read, sizeof(Hello) - guest.read, 0);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
  guest.read += static_cast<size_t>(std::max<ssize_t>(count, 0));
  if (count > 0 && guest.read < sizeof(Hello)) return;
  guest.is_over = true;
  if (guest.read == sizeof(Hello) && guest.hello.token == token_) take_(guest.hello, guest.socket);
}

}  // namespace narrowcast::connections
