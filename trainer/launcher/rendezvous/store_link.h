// The thread on which a launcher exchanges data with the store of its group.
//
// The launcher's main thread must never wait for the network, because it handles workers and signals. This thread
// therefore makes all requests, one after another, and the main thread reads the last answer. If a host disappears
// without closing its connections, a request may hang for minutes. The main thread then sees that there are no new
// answers, and leaves.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>

#include "trainer/launcher/group/group.h"
#include "trainer/launcher/group/succession.h"
#include "trainer/launcher/posix/worker_runner.h"
#include "trainer/launcher/rendezvous/rendezvous_options.h"
#include "trainer/launcher/store/hosted_store.h"
#include "trainer/launcher/store/store_member.h"
#include "trainer/launcher/store/worker_entries.h"

namespace narrowcast::launcher {

// A clock for timeouts of other launchers. If this process was itself stopped for a while, only kLongestStep of that
// time counts, because the others are not to blame. now() must be called more often than every kLongestStep.
class PatientClock {
 public:
  Clock::time_point now() {
    const Clock::time_point real = Clock::now();
    time_ += std::min<Clock::duration>(real - last_, kLongestStep);
    last_ = real;
    return time_;
  }

 private:
  static constexpr std::chrono::milliseconds kLongestStep{1000};

  Clock::time_point last_ = Clock::now();
  Clock::time_point time_ = last_;
};

// The store, this node, and its timeouts.
struct LinkOptions {
  std::string host;  // address where the launchers meet, and of the store unless it is elsewhere
  int64_t port = 0;
  std::optional<Endpoint> elsewhere = {};  // of the store of a launcher that took over from the one there
  // The store where the launchers meet, if it led this launcher elsewhere and is served here: it may lead on. Else
  // null.
  std::shared_ptr<HostedStore> left_behind = {};
  NodeDescription node;
  RendezvousOptions rendezvous;
  std::chrono::milliseconds monitor_interval;  // between two rounds of requests
  std::shared_ptr<HostedStore> hosted = {};    // the store, if served here; shared with a thread left behind
  // Serves the store later, if nobody else does; null: this launcher never does.
  std::shared_ptr<EndpointStore> endpoint = {};
  std::string run_id;  // name of the job if this launcher serves the store and --rdzv_id is not given
  JobSeal seal = {};   // seal of the launchers' entries
  // Where this launcher serves the store if it takes over; null: it never does. Shared with a thread left behind.
  std::shared_ptr<const Standby> standby = {};
  std::optional<Succession> succession = {};  // the host before was lost; `hosted` is null then
};

// The state of the group.
struct LinkState {
  int64_t answers = 0;  // answers with a new heartbeat of the host; all, if this launcher is the host
  int64_t ticket = 0;   // 0: not joined yet
  std::optional<Decision> decision = {};
  bool is_host = false;          // this launcher serves the store
  bool is_succeeding = false;    // the next host has not been found yet; `decision` is that of the last one
  std::string moved = {};        // "HOST:PORT" where the job runs, if it does not run here; no more answers will come
  int64_t server = 0;            // ticket of the launcher that serves the store, if another one took over
  std::string broken = {};       // why no more answers will come; empty: they may
  bool others_left = false;      // no launcher needs the store any more
  bool left = false;             // leave() was written to the store
  int64_t rejected = 0;          // number of ignored entries
  HostSign host = {};            // last heartbeat of another launcher that serves the store
  bool host_is_spoiled = false;  // its heartbeats were overwritten or removed since the last one
  std::map<RankOfNode, int64_t> starts = {};  // result of a rank's last announced start; none: not in the store yet
  SilentRanks silent = {};                    // of the ranks that are watched
};

// Exchanges data with the store during its lifetime. No call blocks.
class StoreLink {
 public:
  explicit StoreLink(LinkOptions options);
  StoreLink(const StoreLink&) = delete;
  StoreLink& operator=(const StoreLink&) = delete;
  // Stops the thread. A thread that hangs in a request is left behind, and ends with the process.
  ~StoreLink();

  // Returns the last known state.
  LinkState state() const;
  // Announces that a rank of the current round has ended successfully.
  void rank_succeeded(const RankOfNode& rank);
  // Announces that a process is about to take the place of a rank in the current round.
  void announce_start(const RankOfNode& rank);
  // From now on reads which of these ranks are found silent.
  void watch(const std::set<RankOfNode>& ranks);
  // Reports the end of this node's workers in a round.
  void report(const RoundReport& report);
  // Announces that this launcher has seen the end of the job.
  void leave();
  // Stops the thread without waiting for it: this launcher has given up the host.
  void abandon();

 private:
  class Conversation;

  std::shared_ptr<Conversation> conversation_;
  std::thread thread_;
};

}  // namespace narrowcast::launcher
