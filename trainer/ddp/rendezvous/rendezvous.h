// Connects the ranks of a job through a key-value store, which rank 0 or the launcher serves.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include <narrowcast/worker_env.h>
#include "trainer/base/network/answering_store.h"
#include "trainer/base/network/places.h"
#include "trainer/base/network/store_file.h"

namespace narrowcast::rendezvous {

// Why waiting for ranks that are gone ends.
inline constexpr const char* kRanksHaveChanged = "the job's ranks have changed meanwhile";

// Options of a JobStore.
struct JobStoreOptions {
  std::chrono::milliseconds timeout;  // of joining as a whole, and of waiting for a key later
  std::string interface;              // where rank 0 serves if MASTER_ADDR is not an address of its machine; or empty
};

// The store through which the ranks of a job meet. Rank 0 serves it, or the launcher if use_agent_store is set. Rank 0
// serves at 127.0.0.1 if all ranks are on its node, else at MASTER_ADDR, and only at that address. The store of a world
// of one is in memory.
//
// With WorkerEnv::recovers_in_place, the job's ranks may change: another process takes the place of one that is gone,
// or nodes come and go (places.h). Until end_joining(), each wait for a key then ends with an error, and have_changed()
// tells why. Only ranks meet that know the same changes: otherwise some would leave a group in which others stay.
//
// With WorkerEnv::store_file, another launcher may serve a new store elsewhere, which counts as a loss: all operations
// of the store that was left then throw c10::DistError. A store that does not answer is no news, as its launcher may be
// lost: then the ranks wait for the file to change. If the job ends instead, their launchers end these processes.
class JobStore {
 public:
  // Serves or reaches the store. Throws c10::DistBackendError "rank R: ..." naming address and port if rank 0 cannot
  // serve there or the store cannot be reached. Throws c10::ValueError for an interface that does not exist. With
  // WorkerEnv::store_file, it looks until the time-out where the store is served. CorruptInputError names a file with
  // other content.
  JobStore(const WorkerEnv& env, const JobStoreOptions& options);

  // The environment with this rank's present place in the job: rank, world size and local ranks, and the address at
  // which it found the store.
  const WorkerEnv& env() const { return env_; }

  // Joins the job's other ranks, and returns a store for their keys only: keys of earlier attempts, in a store that
  // outlived them, are not visible. Throws c10::DistBackendError naming the ranks that do not come in time. With
  // recovers_in_place, it has then asked the launchers to replace these.
  c10::intrusive_ptr<c10d::Store> join();

  // Whether join() has done so.
  bool has_reported() const { return has_reported_; }

  // Whether join() has failed because the others work on: this rank's node has not met them, and they take it in when
  // all its ranks have started. It has reported those that have not. False if one had been reported before, and was not
  // replaced: then nobody will come.
  bool waits_on() const { return waits_on_; }

  // The ranks are connected: from now on, waits for keys last as long as they are asked to.
  void end_joining();

  // Whether the job's ranks have changed since this object was made, or do within that time. False without
  // recovers_in_place. While the store does not answer, and might move, it waits longer: up to
  // JobStoreOptions::timeout.
  bool have_changed(std::chrono::milliseconds within);

  // How the job's ranks have changed since this object was made.
  enum class Change {
    kNone,
    kLoss,      // a process was replaced, a node was lost, or the store has moved
    kNewcomer,  // only nodes have joined, and their ranks wait for the others
    kNumber,    // only nodes that were to be taken in are gone, or start again: those that meet have another number
  };
  // Throws c10::DistError if the store does not answer, and has not moved.
  Change change() const;

  // Which nodes may join while the ranks live on.
  enum class Newcomers {
    kJoin,
    kReplaceLost,  // only in the place of others that are lost
  };
  // Tells the launchers that this job's ranks can form a new group when nodes are lost or join. `ranks_divide` is a
  // number that the number of ranks must divide when nodes join; 0: any number of ranks works.
  void announce_regroups(Newcomers newcomers = Newcomers::kJoin, int64_t ranks_divide = 0);

  // With recovers_in_place: asks the launcher to end the process of a rank that was found silent.
  void report_silent(int64_t rank);

  // An entry below job_prefix().
  struct Entry {
    std::string key;
    std::string value;
  };
  // What report_silent writes.
  Entry report_of_silence(int64_t rank) const;
  // The keys of a rank: its heartbeats (signs_key), and whether it meets the others (ready_key).
  std::string signs_key_of(int64_t rank) const;
  std::string ready_key_of(int64_t rank) const;

  // After which time without a heartbeat the launchers take a node for lost, or options.timeout if that is shorter.
  std::chrono::milliseconds node_silence() const { return node_silence_; }

 private:
  bool find_store();
  c10::intrusive_ptr<network::AnsweringStore> reach() const;
  void use(const c10::intrusive_ptr<c10d::Store>& everything);
  network::StoreAddress address() const;
  bool has_moved() const;
  int64_t read_starts() const;
  Places read_places() const;
  std::chrono::milliseconds read_node_silence() const;
  Change read_change() const;
  RankOfNode place_of(int64_t rank) const;
  std::optional<int64_t> rank_of(const RankOfNode& place) const;
  std::optional<Change> look() const;
  bool is_as_found() const;
  void take_place();
  c10::intrusive_ptr<c10d::Store> meet();
  void wait_for_place();
  void report_missing(const std::vector<int64_t>& ranks);
  bool is_newcomer() const;
  void report_unstarted();

  WorkerEnv env_;
  const JobStoreOptions options_;
  const std::chrono::steady_clock::time_point deadline_;
  c10::intrusive_ptr<c10d::Store> keys_;                   // of the launcher's job
  c10::intrusive_ptr<network::AnsweringStore> answering_;  // null in a world of one and on the rank that serves
  int64_t starts_ = 0;                                     // kStarts when this was made
  // kPlaces when this was made. No nodes: they do not change. If the ranks of this one start, it comes last.
  Places places_;
  bool is_starting_ = false;  // The others do not wait for this node.
  std::chrono::milliseconds node_silence_ = kDefaultNodeSilence;
  bool has_reported_ = false;
  bool waits_on_ = false;
};

}  // namespace narrowcast::rendezvous
