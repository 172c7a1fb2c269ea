#include "trainer/launcher/rendezvous/store_link.h"

#include <utility>

#include "trainer/launcher/rendezvous/conversation.h"

namespace narrowcast::launcher {

StoreLink::StoreLink(LinkOptions options)
    : conversation_(std::make_shared<Conversation>(std::move(options))),
      thread_([conversation = conversation_] { conversation->run(); }) {}

StoreLink::~StoreLink() {
  if (!thread_.joinable()) {
    return;
  }
  if (conversation_->stop()) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

LinkState StoreLink::state() const { return conversation_->state(); }

void StoreLink::rank_succeeded(const RankOfNode& rank) { conversation_->rank_succeeded(rank); }

void StoreLink::announce_start(const RankOfNode& rank) { conversation_->announce_start(rank); }

void StoreLink::watch(const std::set<RankOfNode>& ranks) { conversation_->watch(ranks); }

void StoreLink::report(const RoundReport& report) { conversation_->report(report); }

void StoreLink::leave() { conversation_->leave(); }

void StoreLink::abandon() {
  conversation_->ask_to_stop();
  thread_.detach();
}

}  // namespace narrowcast::launcher
