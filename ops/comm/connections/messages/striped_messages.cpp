#include "ops/comm/connections/messages/striped_messages.h"

#include <c10/util/thread_name.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <exception>
#include <mutex>
#include <system_error>
#include <utility>

#include "ops/comm/connections/messages/peer.h"
#include "ops/common/batch_scheduling.h"
#include "ops/common/error_message.h"

namespace narrowcast::connections {
namespace {

using Clock = std::chrono::steady_clock;

// Bytes that a socket accepts beyond those that it may send now. More would bind frames to a socket that is slow.
constexpr int kMostUnsent = 1 << 16;

constexpr int kMostEvents = 64;
constexpr std::chrono::milliseconds kBetweenLooks{100};

int checked(int result, const char* call) {
  if (result < 0) throw std::system_error(errno, std::generic_category(), call);
  return result;
}

// Sockets of other kinds lack these options, and work without them.
void set_up(int socket) {
  const int on = 1;
  static_cast<void>(::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)));
  static_cast<void>(::setsockopt(socket, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &kMostUnsent, sizeof(kMostUnsent)));
}

// An exception, such as too little memory, would end the process on the sockets' thread.
template <class Body>
void or_fail(Peer& peer, const Body& body) {
  try {
    body(peer);
  } catch (const std::exception& error) {
    peer.fail(error_message(error));
  }
}

}  // namespace

class StripedMessages::Io {
 public:
  Io(SocketsByPeer sockets, const Options& options);
  ~Io();

  void run();
  void stop();
  void close(const std::string& why);
  bool has_lost_peers() const {
    const std::lock_guard<std::mutex> lock(waiting_->mutex);
    return std::ranges::any_of(peers_, [](const auto& of_rank) { return of_rank.second->is_lost(); });
  }

  template <class Body>
  auto with_peer(int64_t rank, const Body& body) {
    const std::lock_guard<std::mutex> lock(waiting_->mutex);
    return body(*peers_.at(rank));
  }

 private:
  void handle(Connection& connection, uint32_t events);
  void update(Connection& connection) const;
  void forget(const Connection& connection) const;
  void close_locked(const std::string& why);
  // Reads News and reports failures. Returns whether the messages are over.
  bool look();

  const std::function<News()> look_;
  const std::shared_ptr<Waiting> waiting_ = std::make_shared<Waiting>();
  const FileDescriptor epoll_;
  const FileDescriptor stopping_;
  std::map<int64_t, std::unique_ptr<Peer>> peers_;
  const pid_t process_ = ::getpid();
  int64_t reported_ = 0;  // Number of peers whose failure has been reported. Used by the thread only.
  bool is_stopped_ = false;
};

StripedMessages::Io::Io(SocketsByPeer sockets, const Options& options)
    : look_(options.look),
      epoll_(checked(::epoll_create1(EPOLL_CLOEXEC), "epoll_create1")),
      stopping_(checked(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "eventfd")) {
  waiting_->timeout = options.timeout;
  waiting_->close = [this](const std::string& why) { close_locked(why); };
  waiting_->on_failure = options.on_failure;
  epoll_event stop{.events = EPOLLIN, .data = {.ptr = nullptr}};
  checked(::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, stopping_.get(), &stop), "epoll_ctl");
  for (auto& [rank, of_peer] : sockets) {
    auto& peer = peers_[rank];
    peer = std::make_unique<Peer>(std::move(of_peer), waiting_,
                                  Peer::Poller{.update = [this](Connection& connection) { update(connection); },
                                               .forget = [this](Connection& connection) { forget(connection); }},
                                  options.most_early_bytes / std::ssize(sockets));
    for (Connection& connection : peer->connections()) {
      set_up(connection.socket.get());
      epoll_event event{.events = EPOLLIN, .data = {.ptr = &connection}};
      checked(::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, connection.socket.get(), &event), "epoll_ctl");
    }
  }
}

// Works may live on.
StripedMessages::Io::~Io() {
  const std::lock_guard<std::mutex> lock(waiting_->mutex);
  waiting_->close = [](const std::string&) {};
}

void StripedMessages::Io::run() {
  std::array<epoll_event, kMostEvents> events{};
  for (auto next_look = Clock::now();;) {
    if (Clock::now() >= next_look) {
      if (look()) return;
      next_look = Clock::now() + kBetweenLooks;
    }
    const int count = ::epoll_wait(epoll_.get(), events.data(), kMostEvents, static_cast<int>(kBetweenLooks.count()));
    for (int i = 0; i < count; ++i) {
      const std::lock_guard<std::mutex> lock(waiting_->mutex);
      if (is_stopped_) return;
      if (events[i].data.ptr == nullptr) {
        eventfd_t stops = 0;
        static_cast<void>(::eventfd_read(stopping_.get(), &stops));
      } else {
        handle(*static_cast<Connection*>(events[i].data.ptr), events[i].events);
      }
    }
  }
}

bool StripedMessages::Io::look() {
  const News news = look_();
  int64_t failed = 0;
  {
    const std::lock_guard<std::mutex> lock(waiting_->mutex);
    for (const int64_t rank : news.left) {
      if (const auto found = peers_.find(rank); found != peers_.end()) {
        or_fail(*found->second, [](Peer& peer) { peer.has_left(); });
      }
    }
    failed = std::ranges::count_if(peers_, [](const auto& of_rank) { return of_rank.second->has_failed(); });
    if (!news.over.empty()) close_locked(news.over);
  }
  if (std::exchange(reported_, failed) != failed) waiting_->on_failure();
  return !news.over.empty();
}

void StripedMessages::Io::stop() {
  const std::lock_guard<std::mutex> lock(waiting_->mutex);
  close_locked("the connections were closed on this rank");
  is_stopped_ = true;
  static_cast<void>(::eventfd_write(stopping_.get(), 1));
}

void StripedMessages::Io::handle(Connection& connection, uint32_t events) {
  or_fail(*connection.peer, [&](Peer& peer) {
    if (connection.socket.is_open() && (events & (EPOLLIN | EPOLLRDHUP | EPOLLERR | EPOLLHUP)) != 0) {
      peer.read(connection);
    }
    if (connection.socket.is_open() && (events & EPOLLOUT) != 0) peer.write(connection);
  });
}

void StripedMessages::Io::update(Connection& connection) const {
  if (!connection.socket.is_open()) return;
  const uint32_t in = connection.is_parked ? EPOLLRDHUP : EPOLLIN;
  epoll_event event{.events = in | (connection.wants_room ? uint32_t{EPOLLOUT} : 0), .data = {.ptr = &connection}};
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, connection.socket.get(), &event);
}

// A child that was forked has copies of the sockets. While they are open, closing one neither tells the peer nor ends
// its events. A child that closes its copies leaves the process's sockets as they are.
void StripedMessages::Io::forget(const Connection& connection) const {
  if (::getpid() != process_) return;
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, connection.socket.get(), nullptr);
  ::shutdown(connection.socket.get(), SHUT_RDWR);
}

void StripedMessages::Io::close(const std::string& why) {
  const std::lock_guard<std::mutex> lock(waiting_->mutex);
  close_locked(why);
}

void StripedMessages::Io::close_locked(const std::string& why) {
  for (const auto& [rank, peer] : peers_) {
    peer->lose(why);
    peer->drop_early();
  }
}

StripedMessages::StripedMessages(SocketsByPeer sockets, const Options& options)
    : io_(std::make_shared<Io>(std::move(sockets), options)), thread_([this] {
        const BatchScheduling batch_scheduling;  // As Gloo's threads.
        return std::thread([io = io_] {
          c10::setThreadName("nc_sockets");
          io->run();
        });
      }()) {}

StripedMessages::~StripedMessages() {
  io_->stop();
  thread_.join();
}

c10::intrusive_ptr<c10d::Work> StripedMessages::send(int64_t peer, int64_t tag, const at::Tensor& bytes) {
  return io_->with_peer(peer, [&](Peer& found) { return found.send(tag, bytes); });
}

c10::intrusive_ptr<c10d::Work> StripedMessages::receive(int64_t peer, int64_t tag, const at::Tensor& bytes) {
  return io_->with_peer(peer, [&](Peer& found) { return found.receive(tag, bytes); });
}

void StripedMessages::close(const std::string& why) { io_->close(why); }

bool StripedMessages::has_lost_peers() const { return io_->has_lost_peers(); }

}  // namespace narrowcast::connections
