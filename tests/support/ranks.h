// Fixtures that run a test body once per rank of a Gloo process group: on threads (fast, the usual choice) or in forked
// processes (where a rank must die).
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

// The work of one rank. `group` has a CPU backend (Gloo) and is not registered by name.
using RankBody = std::function<void(int64_t rank, const c10::intrusive_ptr<c10d::ProcessGroup>& group)>;

struct RanksOptions {
  // The timeout of every collective once all have joined (of a message at least 10 s). Set it only if a timeout is
  // expected.
  std::chrono::milliseconds timeout = kPatience;
};

// Runs `body` on `world_size` threads over one HashStore, once all of them have joined their group, and joins the
// threads. Prints all exceptions and rethrows the earliest one: the others are mostly its consequences. A rank that
// throws gives up its group at once, so that its peers fail instead of waiting for the timeout. The groups of the
// others live until every rank has returned.
void run_ranks(int64_t world_size, const RankBody& body, const RanksOptions& options = {});

// Waits until all ranks of `group` are here. Use it instead of group->barrier(): LibTorch assigns a static tensor
// there, and ranks on threads of one process would corrupt the heap by assigning it at once.
void wait_for_ranks(const c10::intrusive_ptr<c10d::ProcessGroup>& group);

// The rank's group. Waits with kPatience until all ranks have joined, and only then sets the timeout of `options`.
// Otherwise a rank that ends at once would end another one that is still connecting, and a short timeout would end a
// slow join.
c10::intrusive_ptr<c10d::ProcessGroup> join_ranks(const c10::intrusive_ptr<c10d::Store>& store, int64_t rank,
                                                  int64_t world_size, const RanksOptions& options);

// Sets the timeout of later calls on `group`.
void set_timeout(const c10::intrusive_ptr<c10d::ProcessGroup>& group, std::chrono::milliseconds timeout);

// Exit codes of fork_ranks: the body returned; the body threw, or a gtest expectation failed in it.
inline constexpr int kRankPassed = 0;
inline constexpr int kRankFailed = 1;

// Runs `body` in `world_size` forked processes over a FileStore and returns their exit codes by rank: one of the two
// above, the body's argument of _exit, or 128 + the signal that ended the process. A failure is printed to standard
// error. Children run ATen single-threaded, because OpenMP's threads do not survive a fork. Autograd refuses to run in
// a child if its parent ran a backward pass before. Put such a test into a separate suite: ctest runs each suite of a
// file that forks in a fresh process.
std::vector<int> fork_ranks(int64_t world_size, const RankBody& body, const RanksOptions& options = {});

}  // namespace narrowcast::testing
