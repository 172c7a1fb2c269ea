// Fixtures that run a test body once per rank of a Gloo process group: on
// threads (fast, the usual choice) or in forked processes (where one must die).
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "tests/support/patience.h"

namespace narrowcast::testing {

// What one rank does. `group` has a CPU backend (Gloo) and is not registered by name.
using RankBody = std::function<void(int64_t rank, const c10::intrusive_ptr<c10d::ProcessGroup>& group)>;

struct RanksOptions {
  // The limit of every collective (of a message at least 10 s), once all have joined. Only where something is to fail.
  std::chrono::milliseconds timeout = kPatience;
};

// Runs `body` on `world_size` threads over one HashStore, once all of them have joined their group, and joins them all.
// Rethrows the first exception, first in time, having printed all of them: the others are then mostly its consequences.
// A rank that throws gives up its group at once, so that its peers fail instead of waiting for the timeout; groups of
// the others live until every rank has returned.
void run_ranks(int64_t world_size, const RankBody& body, const RanksOptions& options = {});

// Waits until all ranks of `group` are here. Not group->barrier(): LibTorch keeps a tensor in a static variable there,
// which ranks on threads of one process would assign at once and corrupt the heap with.
void wait_for_ranks(const c10::intrusive_ptr<c10d::ProcessGroup>& group);

// The rank's group: waits until all ranks have joined, with patience, and only then sets the timeout of `options`. (Or
// a rank that ends at once ends another one that is still connecting, and a short timeout ends what only takes a
// while.)
c10::intrusive_ptr<c10d::ProcessGroup> join_ranks(const c10::intrusive_ptr<c10d::Store>& store, int64_t rank,
                                                  int64_t world_size, const RanksOptions& options);

// Sets the time limit of what is called on `group` afterwards.
void set_timeout(const c10::intrusive_ptr<c10d::ProcessGroup>& group, std::chrono::milliseconds timeout);

// Exit codes of fork_ranks for a body that returned, and one that threw or in which a gtest expectation failed.
inline constexpr int kRankPassed = 0;
inline constexpr int kRankFailed = 1;

// Runs `body` in `world_size` forked processes over a FileStore and returns their exit codes by rank: the two above,
// or what the body passed to _exit, or 128 + signal for a process that a signal ended. A failure is printed to
// standard error. Children run ATen single-threaded, because OpenMP's threads do not survive a fork. Autograd refuses
// to run in a child if its parent ran a backward pass before: let such a test be a suite of its own (ctest runs
// each suite of a file that forks in a fresh process).
std::vector<int> fork_ranks(int64_t world_size, const RankBody& body, const RanksOptions& options = {});

}  // namespace narrowcast::testing
