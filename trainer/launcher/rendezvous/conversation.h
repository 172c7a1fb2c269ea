// The conversation of a launcher with the store of its group, on StoreLink's thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "trainer/launcher/rendezvous/store_link.h"
#include "trainer/launcher/store/store_host.h"
#include "trainer/launcher/store/store_member.h"

namespace narrowcast::launcher {

// Both threads share it, so that it lives until both have ended.
class StoreLink::Conversation {
 public:
  explicit Conversation(LinkOptions options);

  // The thread's function.
  void run();

  // As the functions of StoreLink.
  LinkState state() const;
  void rank_succeeded(const RankOfNode& rank);
  void announce_start(const RankOfNode& rank);
  void watch(const std::set<RankOfNode>& ranks);
  void report(const RoundReport& report);
  void leave();

  void ask_to_stop();
  // Returns whether the thread ended.
  bool stop();

 private:
  // Notes a wish of the main thread, and ends a pause.
  template <class Change>
  void post(const Change& change) {
    const std::lock_guard lock(mutex_);
    change();
    changed_.notify_all();
  }

  // Sends what is pending, and keeps it if that fails.
  template <class Value, class Send>
  void send(std::optional<Value>& pending, const Send& send_value) {
    std::unique_lock lock(mutex_);
    std::optional<Value> value = std::exchange(pending, std::nullopt);
    lock.unlock();
    try {
      if (value) {
        send_value(*value);
      }
    } catch (...) {
      lock.lock();
      pending = pending ? std::move(pending) : std::move(value);
      throw;
    }
  }

  void talk();
  bool pause();
  void converse(c10d::Store& store, StoreMember& member, const std::optional<StoreHost>& host);
  void announce_ranks(c10d::Store& store);
  void look_for_silent_ranks(c10d::Store& store);
  bool has_host_decided() const;
  std::string current_run() const;

  // In conversation_joining.cpp.
  StorePtr join(std::optional<StoreMember>& member, std::optional<StoreHost>& host);
  StorePtr try_to_join(std::optional<StoreMember>& member, std::optional<StoreHost>& host);
  StorePtr find_store_there();
  StorePtr find_successor();
  void serve(std::optional<StoreHost>& host, const StorePtr& store, const JobSeal& seal);
  void introduce_host(StoreMember& member);
  bool find_host(StoreMember& member);
  bool has_moved(StoreMember& member);
  bool is_led_on();
  bool is_stopping() const;
  StorePtr reconnected(const c10d::Store& broken, StoreMember& member);

  const LinkOptions options_;
  std::optional<Succession> succession_ = options_.succession;
  const Endpoint place_ = options_.elsewhere.value_or(Endpoint{options_.host, options_.port});
  std::shared_ptr<HostedStore> hosted_;  // the store, if served here
  Clock::time_point next_beat_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  LinkState state_;
  std::optional<RankOfNode> succeeded_;  // the last rank that succeeded, until it is announced
  std::set<RankOfNode> starting_;        // ranks whose starts are to be announced
  std::set<RankOfNode> watched_;         // ranks that may be found silent
  std::optional<RoundReport> report_;
  bool is_connected_ = false;  // the host has answered
  bool leaving_ = false;
  bool stopping_ = false;
  bool ended_ = false;
};

}  // namespace narrowcast::launcher
