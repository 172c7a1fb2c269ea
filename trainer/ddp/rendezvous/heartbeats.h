// Heartbeats of a process in the launcher's store, with recovery in place.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <memory>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <narrowcast/worker_env.h>
#include "trainer/base/network/store_file.h"

namespace narrowcast::rendezvous {

// A separate connection to the keys of a job's ranks in its launcher's store.
struct JobKeys {
  network::StoreAddress address;         // where the store is served
  c10::intrusive_ptr<c10d::Store> keys;  // below job_prefix(). Each operation ends, as AnsweringStore's do.

  // Connects to the launcher's store where it is served at present. Throws an exception if that takes longer than
  // `patience`.
  static JobKeys reach(const WorkerEnv& env, std::chrono::milliseconds patience);

  // Whether another launcher serves the store meanwhile.
  bool have_moved(const WorkerEnv& env) const;
};

// Gives a sign of life each second during its lifetime, on a separate thread, also while this process reads its data
// and meets the others. Ranks that wait for it (heartbeat_watch.h) so find out that it stands still. Does nothing
// without WorkerEnv::recovers_in_place. Throws nothing: while the store does not answer, it tries again.
class Heartbeats {
 public:
  static constexpr std::chrono::milliseconds kEvery{1000};

  explicit Heartbeats(const WorkerEnv& env, std::chrono::milliseconds every = kEvery);
  // From now on this process is not expected to live, unless an exception passes: then it should end soon. A thread
  // that waits for the store is left behind.
  ~Heartbeats();
  Heartbeats(const Heartbeats&) = delete;
  Heartbeats& operator=(const Heartbeats&) = delete;

 private:
  struct State;

  std::shared_ptr<State> state_;  // null: it does nothing
  std::thread thread_;
};

}  // namespace narrowcast::rendezvous
