// The thread on which a launcher talks to the store of its group.
//
// The launcher's main thread must never wait for the network: it has workers and signals
// to look after. So all requests are made here, one after another, and the main thread
// looks at the last answer. If a host is gone without a word a request may hang for
// minutes; the main thread then sees that no answer is new (silence()), and leaves.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "trainer/launcher/group/group.h"
#include "trainer/launcher/group/hosted_store.h"
#include "trainer/launcher/group/store_protocol.h"
#include "trainer/launcher/rendezvous_options.h"

namespace narrowcast::launcher {

struct LinkOptions {
  std::string host;  // where the store is
  int64_t port = 0;
  NodeDescription node;
  RendezvousOptions rendezvous;
  std::chrono::milliseconds monitor_interval{100};  // between two questions
  HostedStore* hosted = nullptr;                    // if this launcher serves it, for as long as the link lives
  std::string run_id;                               // then: what to call the job if --rdzv_id does not
};

// What is known of the group.
struct LinkState {
  int64_t answers = 0;  // how many questions were answered
  int64_t ticket = 0;   // 0: not joined yet
  std::optional<Decision> decision = {};
  std::string broken = {};   // why nothing more will come; empty: it may
  bool others_left = false;  // nobody needs the store any more
  bool left = false;         // the store knows that this launcher has seen the end
};

class StoreLink {
 public:
  explicit StoreLink(LinkOptions options);
  StoreLink(const StoreLink&) = delete;
  StoreLink& operator=(const StoreLink&) = delete;
  // Stops the thread; one that hangs in a request is left behind, and ends with the process.
  ~StoreLink();

  LinkState state() const;
  // A rank of the round that runs has ended well.
  void rank_succeeded(int64_t rank);
  void report(const RoundReport& report);
  void leave();

 private:
  class Conversation;

  std::shared_ptr<Conversation> conversation_;
  std::thread thread_;
};

}  // namespace narrowcast::launcher
