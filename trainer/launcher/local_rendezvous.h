// The rendezvous of a job on one node: there is nobody to ask.
#pragma once

#include <functional>

#include "trainer/launcher/rendezvous.h"

namespace narrowcast::launcher {

class LocalRendezvous : public Rendezvous {
 public:
  // `first` is the round to begin with. `before_round` is called before each one, and `succeeded` with each rank that
  // has ended well.
  LocalRendezvous(Round first, std::function<void()> before_round, std::function<void(int64_t)> succeeded);

  Directive directive() override;
  void rank_succeeded(int64_t rank) override { succeeded_(rank); }
  void report(const NodeReport& report) override;
  bool may_leave() override { return true; }

 private:
  Round round_;
  const std::function<void()> before_round_;
  const std::function<void(int64_t)> succeeded_;
  std::optional<GroupEnd> end_;  // of the round before
  bool over_ = false;
};

// How a job on one node, or a node's part of it, ended by its own report.
GroupEnd end_of_report(const NodeReport& report);

}  // namespace narrowcast::launcher
