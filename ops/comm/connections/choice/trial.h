// A measurement of the bandwidth between two ranks in less time than one connection needs to reach it.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "ops/common/file_descriptor.h"

namespace narrowcast::connections {

// Bytes that have come until a point of time, in seconds since any point.
struct Arrival {
  double seconds = 0;
  int64_t bytes = 0;
};

// The rate of the second half of the longest train, in bytes per second. A train is a series of arrivals without a gap
// of a quarter of the round trip. Its first half may be a burst that a token bucket lets pass. Returns 0 if it cannot
// be told: nothing has come, or all at once.
double rate_of_trains(std::vector<Arrival> arrivals, double round_trip_seconds);

struct TrialTimes {
  std::chrono::duration<double> wait{2};  // For the first bytes: ranks begin when they have met, some later.
  std::chrono::duration<double> time{1};  // After the first bytes.
};

// Each rank receives from a peer for five round trips, at most this time.
inline constexpr double kMostTrialSeconds = 1;

// The times of a trial of ranks that have met (meeting/meet_together.h). `most_round_trip`: an upper bound in seconds.
// Together with the meeting it ends within the timeout of messages: the others wait for a report of this rank.
TrialTimes times_of_trial(double most_round_trip, std::chrono::milliseconds timeout);

struct Trial {
  std::vector<Arrival> arrivals = {};
  int64_t bytes_sent = 0;  // Given to the kernel, which may drop the last of them at the end of the sockets.
};

// Sends as much as TCP lets the sockets of one peer, and returns what has come from the sockets of another one, which
// does the same. The sockets are new, and their congestion control does not pace packets. So each sends its initial
// window at once (RFC 6928: 10 packets): 64 sockets send about 0.9 MB in the first round trip, and twice as much in
// each later one. Arrivals have the kernel's time, if the sockets keep times (SocketOptions), so that a late thread
// changes nothing. `to` and `from` may be the same sockets.
Trial send_and_receive(const std::vector<FileDescriptor>& to, const std::vector<FileDescriptor>& from,
                       const TrialTimes& times);

// The least round trip that the kernel has measured on TCP sockets, in seconds; 0 if it has measured none.
double least_round_trip(const std::vector<FileDescriptor>& sockets);

// The most bytes that a TCP connection of this machine has under way if epoll tells when it has room. Linux tells it
// only while a third of the largest send buffer (tcp_wmem) is free. The receiver announces half of tcp_rmem.
double most_bytes_under_way();

}  // namespace narrowcast::connections
