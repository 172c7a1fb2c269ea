#include "ops/comm/connections/choice/trial.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <fstream>
#include <string>

namespace narrowcast::connections {
namespace {

using Clock = std::chrono::steady_clock;

// A trial sees some trains.
constexpr double kTrialRoundTrips = 5;
constexpr double kLeastTrialSeconds = 0.02;
constexpr std::chrono::seconds kMostWait{2};

constexpr size_t kPieceToSend = size_t{1} << 18;
// All bytes of one call have the time of the last packet among them.
constexpr size_t kPieceToReceive = size_t{1} << 14;

double seconds_of(const timespec& time) {
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// As the kernel's time of arrival.
double now() {
  timespec time{};
  ::clock_gettime(CLOCK_REALTIME, &time);
  return seconds_of(time);
}

// The time of the last packet that was read. It is now, if the kernel has not kept it.
double time_of(const msghdr& message) {
  for (auto* control = CMSG_FIRSTHDR(&message); control != nullptr;
       control = CMSG_NXTHDR(const_cast<msghdr*>(&message), control)) {
    if (control->cmsg_level == SOL_SOCKET && control->cmsg_type == SO_TIMESTAMPNS) {
      timespec time{};
      std::memcpy(&time, CMSG_DATA(control), sizeof(time));
      return seconds_of(time);
    }
  }
  return now();
}

// Returns false at the end of the socket.
bool receive(int socket, std::vector<char>& piece, std::vector<Arrival>& arrivals) {
  std::array<char, 256> control{};
  iovec part{piece.data(), piece.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t count = ::recvmsg(socket, &message, MSG_DONTWAIT);
  if (count > 0) arrivals.push_back({time_of(message), count});
  return count > 0 || (count < 0 && (errno == EAGAIN || errno == EINTR));
}

// Returns false if the socket cannot be written any more.
bool send(int socket, const std::vector<char>& piece, int64_t& sent) {
  const ssize_t count = ::send(socket, piece.data(), piece.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  sent += std::max<ssize_t>(count, 0);
  return count >= 0 || errno == EAGAIN || errno == EINTR;
}

// The third number of a file such as /proc/sys/net/ipv4/tcp_wmem: the largest buffer.
double largest_buffer(const char* name, double usual) {
  std::ifstream file(std::string("/proc/sys/net/ipv4/") + name);
  double least = 0;
  double initial = 0;
  double most = 0;
  return file >> least >> initial >> most && most > 0 ? most : usual;
}

}  // namespace

double rate_of_trains(std::vector<Arrival> arrivals, double round_trip_seconds) {
  std::ranges::sort(arrivals, {}, &Arrival::seconds);
  int64_t most = 0;
  double rate = 0;
  for (size_t begin = 0; begin < arrivals.size();) {
    size_t end = begin + 1;
    int64_t bytes = arrivals[begin].bytes;
    while (end < arrivals.size() && arrivals[end].seconds - arrivals[end - 1].seconds < round_trip_seconds / 4) {
      bytes += arrivals[end++].bytes;
    }
    if (bytes > most) {
      most = bytes;
      size_t middle = begin;
      int64_t before = arrivals[middle].bytes;
      while (middle + 1 < end && 2 * before < bytes) before += arrivals[++middle].bytes;
      const double seconds = arrivals[end - 1].seconds - arrivals[middle].seconds;
      rate = seconds > 0 ? static_cast<double>(bytes - before) / seconds : 0;
    }
    begin = end;
  }
  return rate;
}

TrialTimes times_of_trial(double most_round_trip, std::chrono::milliseconds timeout) {
  using Seconds = std::chrono::duration<double>;
  const Seconds trains(std::clamp(kTrialRoundTrips * most_round_trip, kLeastTrialSeconds, kMostTrialSeconds));
  return {.wait = std::min<Seconds>(kMostWait, timeout / 4), .time = std::min<Seconds>(trains, timeout / 8)};
}

Trial send_and_receive(const std::vector<FileDescriptor>& to, const std::vector<FileDescriptor>& from,
                       const TrialTimes& times) {
  std::vector<pollfd> events;
  for (const FileDescriptor& socket : from) events.push_back({socket.get(), POLLIN, 0});
  for (const FileDescriptor& socket : to) events.push_back({socket.get(), POLLOUT, 0});
  Trial trial;
  std::vector<char> received(kPieceToReceive);
  const std::vector<char> sent(kPieceToSend);
  const auto after = [](std::chrono::duration<double> time) {
    return Clock::now() + std::chrono::duration_cast<Clock::duration>(time);
  };
  auto deadline = after(times.wait);
  for (bool has_begun = false;;) {
    if (!has_begun && !trial.arrivals.empty()) {
      has_begun = true;
      deadline = after(times.time);
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() <= 0) break;
    ::poll(events.data(), events.size(), static_cast<int>(left.count()));
    for (size_t i = 0; i < events.size(); ++i) {
      pollfd& event = events[i];
      if (event.fd < 0 || event.revents == 0) continue;
      const bool is_open =
          i < from.size() ? receive(event.fd, received, trial.arrivals) : send(event.fd, sent, trial.bytes_sent);
      if (!is_open) event.fd = -1;
    }
  }
  return trial;
}

double least_round_trip(const std::vector<FileDescriptor>& sockets) {
  double least = 0;
  for (const FileDescriptor& socket : sockets) {
    tcp_info info{};
    socklen_t size = sizeof(info);
    if (::getsockopt(socket.get(), IPPROTO_TCP, TCP_INFO, &info, &size) != 0 || info.tcpi_rtt == 0) continue;
    const double seconds = 1e-6 * info.tcpi_rtt;
    least = least == 0 ? seconds : std::min(least, seconds);
  }
  return least;
}

double most_bytes_under_way() {
  return std::min(largest_buffer("tcp_wmem", 4 << 20) * 2 / 3, largest_buffer("tcp_rmem", 6 << 20) / 2);
}

}  // namespace narrowcast::connections
