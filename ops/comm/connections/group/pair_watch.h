// Notices that the connections of a group's Gloo backend ("pairs") have ended, and ends them.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

namespace narrowcast::connections {

// Gloo chooses the network of a message by its tag: GLOO_SOCKET_IFNAME may list several.
inline constexpr int kMostNetworks = 8;

// Waits on each network for a message of each peer that never comes, and never blocks. Keeps no reference to the
// backend, but its pairs live as long as the watch. Not thread-safe.
class PairWatch {
 public:
  struct News {
    std::string time_out = {};       // If not empty: a wait of this rank has timed out, and Gloo has closed all pairs.
    std::vector<int64_t> left = {};  // Peers whose pair has ended since the last call.
  };

  // `networks`: number of networks of the backend.
  PairWatch(c10d::Backend& backend, const std::vector<int64_t>& peers, int networks);

  News look();

 private:
  struct Receive {
    int64_t peer = 0;
    c10::intrusive_ptr<c10d::Work> work;
  };
  std::vector<Receive> receives_;
};

// Ends the pairs of a Gloo backend: all waits of this rank and of its peers fail. Takes a few milliseconds.
void close_pairs(c10d::Backend& backend);

}  // namespace narrowcast::connections
