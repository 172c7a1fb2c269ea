#include "trainer/launcher/group/roster.h"

#include <algorithm>

namespace narrowcast::launcher {

std::vector<NodeView> Roster::look(Clock::time_point now, const std::vector<NodeView>& nodes) {
  std::vector<NodeView> new_ones;
  for (const NodeView& view : nodes) {
    const auto [entry, is_new] = nodes_.try_emplace(view.ticket, Node{.view = view, .came = now, .heard = now});
    Node& node = entry->second;
    if (is_new) {
      new_ones.push_back(view);
    } else if (view.beats != node.view.beats) {
      node.heard = now;
    }
    node.view = view;
    node.lost = node.lost || (!view.left && now - node.heard > silence_);
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

bool Roster::others_left() const {
  return std::all_of(nodes_.begin(), nodes_.end(), [&](const auto& entry) {
    return entry.first == nodes_.begin()->first || entry.second.lost || entry.second.view.left;
  });
}

}  // namespace narrowcast::launcher
