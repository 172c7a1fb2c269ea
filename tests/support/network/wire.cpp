// A wire between two network interfaces that delays, loses or cuts packets, for kernels without netem:
//
//   wire LEFT RIGHT
//
// forwards every packet of one interface to the other, in both directions and in order. Each line of standard input
// sets the quality until the next line:
//
//   DELAY_US LOSS [BACK]   packets arrive DELAY_US microseconds later, and a share LOSS of them, 0 to 1, is lost;
//                          BACK, if given, is the share for packets from RIGHT to LEFT
//
// The program ends at the end of standard input. A packet that TCP leaves to the interface to segment is forwarded or
// lost as a whole, with the kernel's description of it (PACKET_VNET_HDR). Needs CAP_NET_RAW. Exit code 1 after an
// error.
#include <arpa/inet.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <deque>
#include <iostream>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMostBytes = size_t{68} << 10;  // The largest packet before segmentation, with its headers.
constexpr int kSocketBytes = 64 << 20;

[[noreturn]] void fail(const std::string& what) { throw std::system_error(errno, std::generic_category(), what); }

void set_option(int socket, int option, const char* name) {
  const int on = 1;
  if (::setsockopt(socket, SOL_PACKET, option, &on, sizeof(on)) != 0) {
    fail(name);
  }
}

// A socket that receives the packets of an interface and sends packets to it.
class Interface {
 public:
  explicit Interface(const char* name) : socket_(::socket(AF_PACKET, SOCK_RAW, 0)) {
    if (socket_ < 0) {
      fail("a packet socket");
    }
    set_option(socket_, PACKET_IGNORE_OUTGOING, "PACKET_IGNORE_OUTGOING");
    set_option(socket_, PACKET_VNET_HDR, "PACKET_VNET_HDR");
    ::setsockopt(socket_, SOL_SOCKET, SO_RCVBUFFORCE, &kSocketBytes, sizeof(kSocketBytes));
    sockaddr_ll address = {};
    address.sll_family = AF_PACKET;
    address.sll_protocol = htons(ETH_P_ALL);
    address.sll_ifindex = static_cast<int>(::if_nametoindex(name));
    if (::bind(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
      fail(std::string("interface ") + name);
    }
  }
  ~Interface() { ::close(socket_); }
  Interface(const Interface&) = delete;
  Interface& operator=(const Interface&) = delete;

  int socket() const { return socket_; }

  // The next packet, or an empty one.
  std::vector<char> receive() {
    const ssize_t bytes = ::recv(socket_, buffer_.data(), buffer_.size(), MSG_DONTWAIT);
    if (bytes < 0 && errno != EAGAIN && errno != EINTR && errno != ENETDOWN) {
      fail("recv");
    }
    return {buffer_.data(), buffer_.data() + std::max<ssize_t>(bytes, 0)};
  }

  // A packet that the interface does not accept is lost, as on a wire.
  void send(const std::vector<char>& packet) { ::send(socket_, packet.data(), packet.size(), 0); }

 private:
  const int socket_;
  std::array<char, kMostBytes> buffer_;
};

struct Quality {
  std::chrono::microseconds delay{0};
  std::array<double, 2> loss{};  // By direction: left to right, right to left.
};

// One direction of the wire.
class Way {
 public:
  Way(Interface& from, Interface& to) : from_(from), to_(to) {}

  void take(std::chrono::microseconds delay, double loss, std::mt19937& random) {
    const Clock::time_point now = Clock::now();
    for (std::vector<char> packet = from_.receive(); !packet.empty(); packet = from_.receive()) {
      if (std::uniform_real_distribution<>()(random) >= loss) {
        under_way_.emplace_back(now + delay, std::move(packet));
      }
    }
  }

  // Forwards the packets that have arrived. Returns when the next packet will arrive, or `latest`.
  Clock::time_point deliver(Clock::time_point latest) {
    while (!under_way_.empty() && under_way_.front().first <= Clock::now()) {
      to_.send(under_way_.front().second);
      under_way_.pop_front();
    }
    return under_way_.empty() ? latest : std::min(latest, under_way_.front().first);
  }

 private:
  Interface& from_;
  Interface& to_;
  std::deque<std::pair<Clock::time_point, std::vector<char>>> under_way_;
};

// Parses the last whole line that standard input holds now; false at its end.
bool read_quality(Quality& quality) {
  static std::string unread;  // The beginning of the next line.
  char text[256];
  const ssize_t bytes = ::read(STDIN_FILENO, text, sizeof(text));
  if (bytes <= 0) {
    return false;
  }
  unread.append(text, static_cast<size_t>(bytes));
  const size_t end = unread.rfind('\n');
  if (end == std::string::npos) {
    return true;
  }
  const size_t newline_before = end == 0 ? std::string::npos : unread.rfind('\n', end - 1);
  const size_t begin = newline_before == std::string::npos ? 0 : newline_before + 1;
  std::istringstream line(unread.substr(begin, end - begin));
  unread.erase(0, end + 1);
  int64_t delay = 0;
  double loss = 0;
  const bool has_both = static_cast<bool>(line >> delay >> loss);
  double back = loss;
  const bool ends = (line >> std::ws).eof() || ((line >> back) && (line >> std::ws).eof());
  const auto is_share = [](double share) { return share >= 0 && share <= 1; };
  if (!has_both || !ends || delay < 0 || !is_share(loss) || !is_share(back)) {
    throw std::invalid_argument("expected DELAY_US LOSS [BACK], but got '" + line.str() + "'");
  }
  quality.loss = {loss, back};
  quality.delay = std::chrono::microseconds(delay);
  return true;
}

void run(Interface& left, Interface& right) {
  std::array<Way, 2> ways = {Way(left, right), Way(right, left)};
  std::mt19937 random;  // Fixed seed: equal runs lose the same packets.
  Quality quality;
  for (;;) {
    Clock::time_point next = Clock::now() + std::chrono::hours(1);
    for (size_t i = 0; i < ways.size(); ++i) {
      ways[i].take(quality.delay, quality.loss[i], random);
      next = ways[i].deliver(next);
    }
    const auto wait = std::max(next - Clock::now(), Clock::duration::zero());
    const timespec timeout = {.tv_sec = std::chrono::duration_cast<std::chrono::seconds>(wait).count(),
                              .tv_nsec = (wait % std::chrono::seconds(1)).count()};
    pollfd waited[] = {{left.socket(), POLLIN, 0}, {right.socket(), POLLIN, 0}, {STDIN_FILENO, POLLIN, 0}};
    if (::ppoll(waited, 3, &timeout, nullptr) < 0 && errno != EINTR) {
      fail("ppoll");
    }
    if (waited[2].revents != 0 && !read_quality(quality)) {
      return;
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "wire: usage: wire LEFT RIGHT, two network interfaces\n";
    return 2;
  }
  try {
    Interface left(argv[1]);
    Interface right(argv[2]);
    std::cout << "ready" << std::endl;
    run(left, right);
  } catch (const std::exception& error) {
    std::cerr << "wire: " << error.what() << '\n';
    return 1;
  }
}
