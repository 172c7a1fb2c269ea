// The thread on which a launcher talks to the store of its group.
//
// The launcher's main thread must never wait for the network: it has workers and signals to look after. So all requests
// are made here, one after another, and the main thread looks at the last answer. If a host is gone without a word a
// request may hang for minutes; the main thread then sees that no answer is new, and leaves.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "trainer/launcher/group/group.h"
#include "trainer/launcher/group/hosted_store.h"
#include "trainer/launcher/group/store_protocol.h"
#include "trainer/launcher/posix/worker_runner.h"
#include "trainer/launcher/rendezvous/rendezvous_options.h"

namespace narrowcast::launcher {

// A clock for judging how long others have been silent. Time in which this process was stopped itself does not count,
// but for kLongestStep of it: nobody else is to blame for that. To be asked more often than that.
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

// Where the store is, who asks, and how patiently.
struct LinkOptions {
  std::string host;  // where the store is
  int64_t port = 0;
  NodeDescription node;
  RendezvousOptions rendezvous;
  std::chrono::milliseconds monitor_interval;  // between two questions
  std::shared_ptr<HostedStore> hosted = {};    // if this launcher serves it: also a thread left behind may need it
  std::string run_id;                          // then: what to call the job if --rdzv_id does not
  JobSeal seal = {};                           // of the launchers' entries
};

// What is known of the group.
struct LinkState {
  int64_t answers = 0;  // how many questions were answered while the host went on deciding
  int64_t ticket = 0;   // 0: not joined yet
  std::optional<Decision> decision = {};
  std::string broken = {};       // why nothing more will come; empty: it may
  bool others_left = false;      // nobody needs the store any more
  bool left = false;             // the store knows that this launcher has seen the end
  int64_t rejected = 0;          // how many entries of the store were ignored
  HostSign host = {};            // the last one of another launcher that serves it
  bool host_is_spoiled = false;  // somebody has overwritten or removed its signs since the last one
};

// Talks from its construction on. Nothing here blocks.
class StoreLink {
 public:
  explicit StoreLink(LinkOptions options);
  StoreLink(const StoreLink&) = delete;
  StoreLink& operator=(const StoreLink&) = delete;
  // Stops the thread; one that hangs in a request is left behind, and ends with the process.
  ~StoreLink();

  // What is known by now.
  LinkState state() const;
  // A rank of the round that runs has ended well.
  void rank_succeeded(int64_t rank);
  // How this node's workers ended in a round.
  void report(const RoundReport& report);
  // This launcher has seen that the job is over.
  void leave();

 private:
  class Conversation;

  std::shared_ptr<Conversation> conversation_;
  std::thread thread_;
};

}  // namespace narrowcast::launcher
