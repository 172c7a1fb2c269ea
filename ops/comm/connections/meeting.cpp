#include "ops/comm/connections/meeting.h"

#include <c10/util/StringUtil.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>
#include <stdexcept>
#include <system_error>
#include <utility>

namespace narrowcast::connections {
namespace {

using Clock = std::chrono::steady_clock;

// Strangers' connections that are kept while they send nothing.
constexpr size_t kMostStrangers = 256;

// The first bytes of a connection.
struct Hello {
  Token token = {};
  int64_t rank = 0;
  int64_t index = 0;
};

[[noreturn]] void throw_system_error(const std::string& what) {
  throw std::system_error(errno, std::generic_category(), what);
}

FileDescriptor open_socket(int family) {
  return FileDescriptor(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

Token random_token() {
  std::random_device random;
  Token token{};
  for (uint64_t& number : token) number = uint64_t{random()} << 32 | random();
  return token;
}

class Meeting {
 public:
  Meeting(const Listener& listener, const std::vector<Card>& cards, const MeetingOptions& options)
      : listener_(listener), cards_(cards), options_(options), deadline_(Clock::now() + options.patience) {
    for (const int64_t peer : options_.peers) {
      for (int64_t index = 0; index < options_.connections; ++index) {
        connected_[peer].emplace_back();
        if (peer > options_.rank) {
          connect_to(peer, index);
        } else {
          ++missing_;
        }
      }
    }
  }

  SocketsByPeer run() {
    while (!connecting_.empty() || missing_ > 0) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline_ - Clock::now());
      if (left.count() <= 0) throw std::runtime_error(text_of_missing());
      step(static_cast<int>(left.count()));
    }
    return std::move(connected_);
  }

 private:
  struct Connecting {
    FileDescriptor socket;
    int64_t peer = 0;
    int64_t index = 0;
  };
  struct Guest {
    FileDescriptor socket;
    Hello hello;
    size_t read = 0;
    bool is_over = false;
  };

  void connect_to(int64_t peer, int64_t index) {
    const SocketAddress& address = cards_.at(static_cast<size_t>(peer)).address;
    FileDescriptor socket = open_socket(address.bytes.ss_family);
    if (!socket.is_open() || (::connect(socket.get(), address.get(), address.length) != 0 && errno != EINPROGRESS)) {
      throw_cannot_connect(peer, errno);
    }
    connecting_.push_back({std::move(socket), peer, index});
  }

  // Waits for an event of some socket, and handles all events.
  void step(int timeout) {
    std::vector<pollfd> events = {{listener_.socket(), POLLIN, 0}};
    for (const Connecting& each : connecting_) events.push_back({each.socket.get(), POLLOUT, 0});
    for (const Guest& guest : guests_) events.push_back({guest.socket.get(), POLLIN, 0});
    if (::poll(events.data(), events.size(), timeout) < 0 && errno != EINTR) throw_system_error("poll");
    auto event = events.begin() + 1;
    for (Connecting& each : connecting_) {
      if ((event++)->revents != 0) greet(each);
    }
    for (Guest& guest : guests_) {
      if ((event++)->revents != 0) hear(guest);
    }
    std::erase_if(connecting_, [](const Connecting& each) { return !each.socket.is_open(); });
    std::erase_if(guests_, [](const Guest& guest) { return guest.is_over; });
    if (events.front().revents != 0) accept_guests();
  }

  void greet(Connecting& each) {
    int error = 0;
    socklen_t length = sizeof(error);
    ::getsockopt(each.socket.get(), SOL_SOCKET, SO_ERROR, &error, &length);
    const Hello hello{cards_.at(static_cast<size_t>(each.peer)).token, options_.rank, each.index};
    if (error == 0 && ::send(each.socket.get(), &hello, sizeof(hello), MSG_NOSIGNAL) != sizeof(hello)) error = errno;
    if (error != 0) throw_cannot_connect(each.peer, error);
    connected_.at(each.peer).at(static_cast<size_t>(each.index)) = std::move(each.socket);
  }

  void accept_guests() {
    for (;;) {
      FileDescriptor socket(::accept4(listener_.socket(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!socket.is_open()) {
        if (errno == EMFILE || errno == ENFILE) throw_system_error("accept");
        return;
      }
      if (guests_.size() < kMostStrangers + static_cast<size_t>(missing_)) guests_.push_back({std::move(socket), {}});
    }
  }

  void hear(Guest& guest) {
    auto* const bytes = reinterpret_cast<char*>(&guest.hello);
    const ssize_t count = ::recv(guest.socket.get(), bytes + guest.read, sizeof(Hello) - guest.read, 0);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
    guest.read += static_cast<size_t>(std::max<ssize_t>(count, 0));
    if (count > 0 && guest.read < sizeof(Hello)) return;
    guest.is_over = true;
    const Hello& hello = guest.hello;
    const auto found = connected_.find(hello.rank);
    if (guest.read < sizeof(Hello) || hello.token != listener_.card().token || found == connected_.end() ||
        hello.rank > options_.rank || hello.index < 0 || hello.index >= options_.connections) {
      return;
    }
    FileDescriptor& place = found->second.at(static_cast<size_t>(hello.index));
    if (place.is_open()) return;
    place = std::move(guest.socket);
    --missing_;
  }

  [[noreturn]] void throw_cannot_connect(int64_t peer, int error) const {
    throw std::runtime_error(c10::str("cannot connect to rank ", peer, " at ",
                                      cards_.at(static_cast<size_t>(peer)).address.text(), ": ",
                                      std::generic_category().message(error)));
  }

  std::string text_of_missing() const {
    for (const auto& [peer, sockets] : connected_) {
      if (!std::ranges::all_of(sockets, &FileDescriptor::is_open)) {
        return c10::str("Timed out after ", options_.patience.count(), "ms: no connection with rank ", peer, " at ",
                        cards_.at(static_cast<size_t>(peer)).address.text());
      }
    }
    return "Timed out";
  }

  const Listener& listener_;
  const std::vector<Card>& cards_;
  const MeetingOptions& options_;
  const Clock::time_point deadline_;
  std::vector<Connecting> connecting_;
  std::vector<Guest> guests_;
  int64_t missing_ = 0;  // Connections to accept.
  SocketsByPeer connected_;
};

}  // namespace

Listener::Listener(const std::string& ip) {
  const SocketAddress wanted = SocketAddress::of_ip(ip);
  socket_ = open_socket(wanted.bytes.ss_family);
  if (!socket_.is_open() || ::bind(socket_.get(), wanted.get(), wanted.length) != 0 ||
      ::listen(socket_.get(), SOMAXCONN) != 0) {
    throw_system_error("listening at " + ip);
  }
  card_ = {SocketAddress::of_socket(socket_.get()), random_token()};
}

SocketsByPeer meet(const Listener& listener, const std::vector<Card>& cards, const MeetingOptions& options) {
  return Meeting(listener, cards, options).run();
}

}  // namespace narrowcast::connections
