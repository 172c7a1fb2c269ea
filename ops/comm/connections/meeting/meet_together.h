// A meeting of all ranks of a group, which succeeds on all of them or on none.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "ops/comm/connections/meeting/meeting.h"

namespace narrowcast::connections {

// The files that connections need besides one for each: an epoll, the listener, and two events.
inline constexpr int64_t kOtherFiles = 4;

// See MeetingOptions.
struct Invited {
  std::vector<int64_t> peers = {};
  int64_t connections = 1;
  SocketOptions sockets = {};
};

// For how long a rank waits for its peers in a meeting. Others wait for this rank's report for `timeout`, as for a
// message.
std::chrono::milliseconds patience_within(std::chrono::milliseconds timeout);

// Listens at the address of the group's Gloo backend; a rank without peers listens for nobody. c10::ValueError if the
// backend is not Gloo's, or if the system refuses.
Listener listen_for_peers(c10d::Backend& backend, const Invited& invited);

// A collective: meets the peers, and calls `use` with the sockets on another thread. If one rank fails, all throw the
// same c10::DistBackendError of `call` (act_together).
void meet_together(const c10::intrusive_ptr<c10d::ProcessGroup>& group, const std::string& call,
                   const Listener& listener, const Invited& invited, const std::function<void(SocketsByPeer)>& use);

}  // namespace narrowcast::connections
