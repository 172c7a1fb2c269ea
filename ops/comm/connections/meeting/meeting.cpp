#include "ops/comm/connections/meeting/meeting.h"

#include <c10/util/StringUtil.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>

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

// Connections of others than peers that are kept while they have not sent their first bytes.
constexpr size_t kMostStrangers = 256;

[[noreturn]] void throw_system_error(const std::string& what) {
  throw std::system_error(errno, std::generic_category(), what);
}

// A kernel without that congestion control keeps its own. Accepted sockets have the options of their listener.
FileDescriptor open_socket(int family, const SocketOptions& options) {
  FileDescriptor socket(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const std::string& congestion_control = options.congestion_control;
  if (!congestion_control.empty()) {
    static_cast<void>(::setsockopt(socket.get(), IPPROTO_TCP, TCP_CONGESTION, congestion_control.data(),
                                   static_cast<socklen_t>(congestion_control.size())));
  }
  if (options.keeps_times) {
    const int on = 1;
    static_cast<void>(::setsockopt(socket.get(), SOL_SOCKET, SO_TIMESTAMPNS, &on, sizeof(on)));
  }
  return socket;
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
      : listener_(listener),
        cards_(cards),
        options_(options),
        deadline_(Clock::now() + options.patience),
        reception_(listener.card().token,
                   kMostStrangers + options.peers.size() * static_cast<size_t>(options.connections),
                   [this](const Hello& hello, FileDescriptor& socket) { take(hello, socket); }) {
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

  void connect_to(int64_t peer, int64_t index) {
    const SocketAddress& address = cards_.at(static_cast<size_t>(peer)).address;
    FileDescriptor socket = open_socket(address.bytes.ss_family, options_.sockets);
    if (!socket.is_open() || (::connect(socket.get(), address.get(), address.length) != 0 && errno != EINPROGRESS)) {
      throw_cannot_connect(peer, errno);
    }
    connecting_.push_back({std::move(socket), peer, index});
  }

  // Waits for events of sockets, and handles them.
  void step(int timeout) {
    std::vector<pollfd> events = {{listener_.socket(), POLLIN, 0}, {listener_.stop_event(), POLLIN, 0}};
    for (const Connecting& each : connecting_) events.push_back({each.socket.get(), POLLOUT, 0});
    const std::vector<int> guests = reception_.sockets();
    for (const int guest : guests) events.push_back({guest, POLLIN, 0});
    if (::poll(events.data(), events.size(), timeout) < 0) {
      if (errno != EINTR) throw_system_error("poll");
      return;
    }
    if (events[1].revents != 0) throw MeetingStopped();
    auto event = events.begin() + 2;
    for (Connecting& each : connecting_) {
      if ((event++)->revents != 0) greet(each);
    }
    std::erase_if(connecting_, [](const Connecting& each) { return !each.socket.is_open(); });
    std::vector<bool> has_news;
    for (; event != events.end(); ++event) has_news.push_back(event->revents != 0);
    reception_.hear(has_news);
    if (events.front().revents != 0) reception_.accept_some(listener_.socket());
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

  void take(const Hello& hello, FileDescriptor& socket) {
    const auto found = connected_.find(hello.rank);
    if (found == connected_.end() || hello.rank > options_.rank || hello.index < 0 ||
        hello.index >= options_.connections) {
      return;
    }
    FileDescriptor& place = found->second.at(static_cast<size_t>(hello.index));
    if (place.is_open()) return;
    place = std::move(socket);
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
  Reception reception_;
  int64_t missing_ = 0;  // Connections to accept.
  SocketsByPeer connected_;
};

}  // namespace

Listener::Listener(const std::string& ip, const SocketOptions& options) {
  const SocketAddress wanted = SocketAddress::of_ip(ip);
  socket_ = open_socket(wanted.bytes.ss_family, options);
  if (!socket_.is_open() || ::bind(socket_.get(), wanted.get(), wanted.length) != 0 ||
      ::listen(socket_.get(), SOMAXCONN) != 0) {
    throw_system_error("listening at " + ip);
  }
  stop_ = FileDescriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop_.is_open()) throw_system_error("eventfd");
  card_ = {SocketAddress::of_socket(socket_.get()), random_token()};
}

void Listener::stop_meeting() const { ::eventfd_write(stop_.get(), 1); }

SocketsByPeer meet(const Listener& listener, const std::vector<Card>& cards, const MeetingOptions& options) {
  return Meeting(listener, cards, options).run();
}

}  // namespace narrowcast::connections
