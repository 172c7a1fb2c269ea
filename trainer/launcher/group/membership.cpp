#include "trainer/launcher/group/membership.h"

#include <algorithm>
#include <set>
#include <utility>

namespace narrowcast::launcher {
namespace {

int64_t count(const Applicants& applicants) { return static_cast<int64_t>(applicants.nodes.size()); }

// The place of the node in the previous round. Newcomers come last.
size_t place_before(const Applicants& applicants, const NodeView& view) {
  const auto found = std::ranges::find(applicants.before, view.ticket, &Member::ticket);
  return static_cast<size_t>(found - applicants.before.begin());
}

std::vector<Member> members_in_order(const std::vector<NodeView>& nodes) {
  std::vector<Member> members;
  for (const NodeView& view : nodes) {
    members.push_back(member_of(view.node, view.ticket, std::ssize(members)));
  }
  return members;
}

// The round has each --node_rank from 0 to N-1 once. With recovery in place it waits for another node of the same rank
// when one is lost. Else the job ends.
class StaticMembership : public Membership {
 public:
  explicit StaticMembership(const GroupSettings& settings) : nodes_(settings.max_nodes), in_place_(settings.in_place) {}

  bool elastic() const override { return false; }
  bool survives_losses() const override { return in_place_; }

  // Later, a launcher may have been started again before its loss is noticed.
  std::string conflict(const Applicants& applicants) const override {
    if (!applicants.before.empty()) {
      return "";
    }
    const std::vector<NodeView> sorted = by_rank(applicants);
    const auto twin = std::adjacent_find(sorted.begin(), sorted.end(), [](const NodeView& one, const NodeView& other) {
      return one.node.node_rank == other.node.node_rank;
    });
    if (twin == sorted.end()) {
      return "";
    }
    return "two launchers were given --node_rank=" + std::to_string(twin->node.node_rank) + ": " + name_of(twin->node) +
           " and " + name_of(std::next(twin)->node);
  }

  bool enough(const Applicants& applicants) const override { return std::ssize(ranks_of(applicants)) == nodes_; }

  // If two nodes have the same rank, the former member keeps it, else the one that came first.
  std::vector<Member> form(const Applicants& applicants) const override {
    if (!enough(applicants)) {
      return {};
    }
    std::vector<NodeView> nodes = applicants.nodes;
    std::ranges::stable_sort(nodes, {}, [&](const NodeView& view) {
      return std::pair(view.node.node_rank, place_before(applicants, view));
    });
    const auto twins = std::ranges::unique(nodes, {}, [](const NodeView& view) { return view.node.node_rank; });
    nodes.erase(twins.begin(), twins.end());
    return members_in_order(nodes);
  }

  std::string missing(const Applicants& applicants) const override {
    const std::set<int64_t> here = ranks_of(applicants);
    std::string ranks;
    for (int64_t rank = 0; rank < nodes_; ++rank) {
      ranks += here.contains(rank) ? "" : (ranks.empty() ? "" : ", ") + std::to_string(rank);
    }
    return std::to_string(here.size()) + " of " + std::to_string(nodes_) + " nodes have joined; missing: --node_rank " +
           ranks;
  }

 private:
  static std::set<int64_t> ranks_of(const Applicants& applicants) {
    std::set<int64_t> ranks;
    for (const NodeView& view : applicants.nodes) {
      ranks.insert(view.node.node_rank);
    }
    return ranks;
  }

  static std::vector<NodeView> by_rank(const Applicants& applicants) {
    std::vector<NodeView> nodes = applicants.nodes;
    std::stable_sort(nodes.begin(), nodes.end(), [](const NodeView& one, const NodeView& other) {
      return one.node.node_rank < other.node.node_rank;
    });
    return nodes;
  }

  const int64_t nodes_;
  const bool in_place_;
};

// The round has `least` to `most` nodes. Former members keep their order, so that ranks change as little as possible;
// newcomers follow in the order of arrival.
class ElasticMembership : public Membership {
 public:
  ElasticMembership(const GroupSettings& settings, const GroupTimeouts& timeouts)
      : least_(settings.min_nodes), most_(settings.max_nodes), last_call_(timeouts.last_call) {}

  bool elastic() const override { return true; }
  bool survives_losses() const override { return true; }
  std::string conflict(const Applicants&) const override { return ""; }
  bool enough(const Applicants& applicants) const override { return count(applicants) >= least_; }

  std::vector<Member> form(const Applicants& applicants) const override {
    // Nodes may join a running job later. Only the first round therefore waits for more than the minimum.
    const bool waited = !applicants.before.empty() || applicants.enough >= last_call_;
    if (!enough(applicants) || (count(applicants) < most_ && !waited)) {
      return {};
    }
    std::vector<NodeView> nodes = applicants.nodes;
    std::stable_sort(nodes.begin(), nodes.end(), [&](const NodeView& one, const NodeView& other) {
      return place_before(applicants, one) < place_before(applicants, other);
    });
    nodes.resize(std::min(nodes.size(), static_cast<size_t>(most_)));
    return members_in_order(nodes);
  }

  std::string missing(const Applicants& applicants) const override {
    const std::string here = std::to_string(count(applicants)) + (count(applicants) == 1 ? " node has" : " nodes have");
    if (!enough(applicants)) {
      return here + " joined of at least " + std::to_string(least_);
    }
    return here + " joined; waiting for up to " + std::to_string(most_);
  }

 private:
  const int64_t least_;
  const int64_t most_;
  const std::chrono::milliseconds last_call_;
};

}  // namespace

Member member_of(const NodeDescription& node, int64_t ticket, int64_t node_rank) {
  return {.ticket = ticket,
          .name = "node " + std::to_string(node_rank) + " (" + node.host + ")",
          .nproc = node.nproc,
          .role = node.role,
          .standby = node.standby};
}

std::vector<NodeView> Roster::look(Clock::time_point now, const std::vector<NodeView>& nodes) {
  std::vector<NodeView> new_ones;
  for (const NodeView& view : nodes) {
    const auto [entry, is_new] = nodes_.try_emplace(view.ticket, Node{.view = view, .came = now, .heard = now});
    Node& node = entry->second;
    if (is_new) {
      new_ones.push_back(view);
    } else if (view.beats != node.view.beats) {
      node.heard = now;
      node.spoiled_by_then = view.spoiled;
    }
    node.view = view;
    node.lost =
        node.lost || !view.unreadable.empty() || !view.absent.empty() || (!view.left && now - node.heard > silence_);
  }
  return new_ones;
}

std::optional<NodeReport> Roster::report(int64_t ticket, int64_t round) const {
  const std::optional<RoundReport>& report = nodes_.at(ticket).view.report;
  if (!report || report->round > round) {
    return std::nullopt;
  }
  if (report->round == round) {
    return report->report;
  }
  const int signal = report->report.signal;
  return signal == 0 ? std::optional<NodeReport>() : NodeReport{.end = NodeReport::End::kInterrupted, .signal = signal};
}

bool Roster::others_left(int64_t own) const {
  return std::all_of(nodes_.begin(), nodes_.end(), [own](const auto& entry) {
    return entry.first == own || entry.second.lost || entry.second.view.left;
  });
}

std::unique_ptr<Membership> make_membership(const GroupSettings& settings, const GroupTimeouts& timeouts) {
  if (settings.backend == kStaticBackend) {
    return std::make_unique<StaticMembership>(settings);
  }
  return std::make_unique<ElasticMembership>(settings, timeouts);
}

}  // namespace narrowcast::launcher
