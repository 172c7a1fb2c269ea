// What a launcher knows that takes over from a lost host.
//
// With recovery in place, launchers listen from the beginning at an address that they put into their
// description (NodeDescription::standby), and all know the last decision. When the host is lost, the first other member
// that can be reached serves the store there. The others join it with their tickets, and it continues the round as if
// the host had been a lost node. Ranks live on meanwhile.
//
//   - The successor needs more than half of the members that the last decision names. The host, if it only was cut off,
//     finds that most members are lost, and ends. So two halves of a cut network never both continue.
//   - Until all members know of each other, some may take over with those of an earlier decision, others with the new
//     ones. So both count (Quorum).
//   - A launcher that has given up a host never returns to it.
//   - Those who join tell what they know of the round (LastKnown). If that is newer than what the successor knows, it
//     waits for the newer members too, and counts on from there. A node has met the others if anyone knows it.
//   - A launcher that waits for a place (Decision::spares) finds the successor in the same way, but never serves. The
//     successor waits a moment for it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "trainer/launcher/group/group.h"

namespace narrowcast::launcher {

struct Succession {
  Decision decision = {};                    // the last one that is known
  int64_t ticket = 0;                        // of this launcher
  std::string store = {};                    // "HOST:PORT" where it serves
  std::map<int64_t, std::string> lost = {};  // tickets of members that were hosts, or should have been; and why not
  std::chrono::milliseconds pause{0};        // of the lost host between two decisions, as it told
};

// What a launcher tells the next host, which may know an older decision. `starts` is the largest number of a start that
// it knows of.
LastKnown last_known(const Decision& decision, int64_t starts);

// Whether the launcher with that ticket is a member of the round.
bool has_member(const Decision& decision, int64_t ticket);

// Whether `now` is a decision of the host that took over, and not yet that of the host before, which it continues.
bool has_decided(const Decision& now, const Succession& succession);

// Whether that member may still take part: it is not lost, and the host had not turned it away.
bool may_come(const Succession& succession, int64_t ticket);

// Returns whether the members that may come are more than half.
bool may_take_over(const Succession& succession);

// The members of which a host must have enough.
class Quorum {
 public:
  using IsHere = std::function<bool(const Member&)>;

  // These will be published as the members.
  void propose(const std::vector<Member>& members) { lists_.push_back(members); }
  // All of the last published members know that they, and no others, are the members.
  void confirm();
  // This launcher took over from the host of these members.
  void succeed(const std::vector<Member>& members);
  // From now on others may take over from this launcher.
  void expect_successors() { is_needed_ = true; }

  // Whether all members have once known of each other.
  bool is_confirmed() const { return is_confirmed_; }
  // Whether nobody else can take over. That takes more than half of the members, of the last that were confirmed or of
  // any that were published since. So half of them is enough for the host itself, but not for one that took over.
  bool suffices(const IsHere& is_here) const;
  // The longest of these lists.
  const std::vector<Member>& members() const;

 private:
  std::vector<std::vector<Member>> lists_;  // published since the last that all knew, and those
  bool is_confirmed_ = false;
  bool is_needed_ = false;
  bool has_succeeded_ = false;
};

}  // namespace narrowcast::launcher
