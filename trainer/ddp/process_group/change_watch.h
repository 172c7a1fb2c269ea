// Notices that the ranks of a job change, with recovery in place.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <narrowcast/process_group.h>
#include "trainer/ddp/rendezvous/rendezvous.h"

namespace narrowcast {

// The time between two looks of a rank into the launchers' store, in a group of `ranks` ranks: 200 ms to 1 s. With 200
// ranks or more, the store's work per second does not grow with them.
std::chrono::milliseconds between_change_looks(int64_t ranks);

// Looks into the launchers' store again and again, on a separate thread. When a rank is lost or the store moves, it
// ends this process's connections to the other ranks: the machine of the lost one may be gone without a sign, and each
// wait then ends with an error. When only newcomers have come, nothing breaks.
class ChangeWatch {
 public:
  // `job` has joined the ranks of the group, whose Gloo backend this is.
  ChangeWatch(std::shared_ptr<rendezvous::JobStore> job, c10::intrusive_ptr<c10d::Backend> gloo);
  // Ends the thread. A thread that waits for an answer of the store is left behind, and ends no connections any more.
  ~ChangeWatch();
  ChangeWatch(const ChangeWatch&) = delete;
  ChangeWatch& operator=(const ChangeWatch&) = delete;

  // Whether other nodes wait to be taken in. The first call tells the launchers that somebody asks: without it they
  // start all ranks again when nodes come or are lost.
  bool has_newcomers();

  // To be called before: has_newcomers will then tell the launchers that nodes can join only in the place of lost ones.
  void keep_newcomers_out();

  // The same: nodes can join only if the number of all ranks then divides `number`.
  void let_ranks_divide(int64_t number);

 private:
  struct State;

  std::shared_ptr<State> state_;
  std::thread thread_;
};

// Whether other nodes wait to be taken in, with WorkerEnv::node: all their ranks have started, and try to join. They do
// when all ranks of the scope's group make a new scope. Ranks notice it at different times.
bool has_newcomers(const ProcessGroupScope& scope);

// To be called by all ranks before has_newcomers, if newcomers could not get the state of the work: then nodes join
// only in the place of lost ones.
void keep_newcomers_out(const ProcessGroupScope& scope);

// To be called by all ranks before has_newcomers, if the work can be shared only by a number of ranks that divides
// `number` (>= 1): then nodes join only when they make such a number together.
void let_ranks_divide(const ProcessGroupScope& scope, int64_t number);

// To be called before joining by a process whose work no newcomer can join. Throws c10::ValueError if the job's ranks
// do other work, which newcomers can join: they have called has_newcomers. `work` is the option that asks for this
// work.
void check_begins_together(const WorkerEnv& env, const std::string& work);

}  // namespace narrowcast
