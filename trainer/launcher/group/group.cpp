#include "trainer/launcher/group/group.h"

#include <array>

namespace narrowcast::launcher {
namespace {

struct Setting {
  std::string flag;
  std::string value;
};

std::array<Setting, 4> settings_of(const NodeDescription& node) {
  const GroupSettings& settings = node.settings;
  const std::string least = std::to_string(settings.min_nodes);
  const std::string most = std::to_string(settings.max_nodes);
  return {{{"--rdzv_backend", settings.backend},
           {"--nnodes", least == most ? least : least + ":" + most},
           {"--max_restarts", std::to_string(settings.max_restarts)},
           {"--rdzv_id", settings.rdzv_id.empty() ? "not given" : settings.rdzv_id}}};
}

// Launchers of fixed nodes are best known by their --node_rank.
std::string place_of(const NodeDescription& node) {
  return node.settings.backend == "static" ? "node " + std::to_string(node.node_rank) + ", " + name_of(node)
                                           : name_of(node);
}

}  // namespace

std::string name_of(const NodeDescription& node) { return node.host + " (pid " + std::to_string(node.pid) + ")"; }

std::string difference(const NodeDescription& one, const NodeDescription& other) {
  const auto ours = settings_of(one);
  const auto theirs = settings_of(other);
  for (size_t i = 0; i < ours.size(); ++i) {
    if (ours[i].value != theirs[i].value) {
      return ours[i].flag + " is " + ours[i].value + " on " + place_of(one) + ", but " + theirs[i].value + " on " +
             place_of(other);
    }
  }
  return "";
}

}  // namespace narrowcast::launcher
