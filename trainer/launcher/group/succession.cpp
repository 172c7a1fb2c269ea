#include "trainer/launcher/group/succession.h"

#include <algorithm>
#include <iterator>

namespace narrowcast::launcher {

LastKnown last_known(const Decision& decision, int64_t starts) {
  LastKnown known = {.change = {.round = decision.round, .changes = decision.changes},
                     .losses = decision.losses,
                     .members = {},
                     .met = {},
                     .starts = starts};
  for (const Member& member : decision.members) {
    known.members.push_back(member.ticket);
    if (!member.is_new) {
      known.met.push_back(member.ticket);
    }
  }
  return known;
}

bool has_member(const Decision& decision, int64_t ticket) {
  return std::ranges::find(decision.members, ticket, &Member::ticket) != decision.members.end();
}

bool has_decided(const Decision& now, const Succession& succession) {
  return now.phase != Decision::Phase::kRunning || now.store != succession.decision.store;
}

bool may_come(const Succession& succession, int64_t ticket) {
  return !succession.lost.contains(ticket) && !succession.decision.evicted.contains(ticket);
}

bool may_take_over(const Succession& succession) {
  const std::vector<Member>& members = succession.decision.members;
  const auto left =
      std::ranges::count_if(members, [&](const Member& member) { return may_come(succession, member.ticket); });
  return 2 * left > std::ssize(members);
}

void Quorum::confirm() {
  lists_.erase(lists_.begin(), std::prev(lists_.end()));
  is_confirmed_ = true;
  has_succeeded_ = false;
}

void Quorum::succeed(const std::vector<Member>& members) {
  lists_ = {members};
  is_confirmed_ = true;
  is_needed_ = true;
  has_succeeded_ = true;
}

bool Quorum::suffices(const IsHere& is_here) const {
  return !is_needed_ || std::ranges::all_of(lists_, [&](const std::vector<Member>& members) {
    const int64_t excess = 2 * std::ranges::count_if(members, is_here) - std::ssize(members);
    return excess > 0 || (excess == 0 && !has_succeeded_);
  });
}

const std::vector<Member>& Quorum::members() const {
  return *std::ranges::max_element(lists_, {}, [](const auto& members) { return members.size(); });
}

}  // namespace narrowcast::launcher
