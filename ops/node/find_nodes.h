// How the ranks of a group find out which of them share a node.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>
#include <vector>

#include <narrowcast/export.h>
#include "ops/node/node_layout.h"
#include "ops/node/node_memory.h"

namespace narrowcast::node {

// What was found, the same on all ranks but for the memory.
struct FoundNodes {
  NodeLayout layout = NodeLayout::flat(1);
  std::shared_ptr<NodeMemory> memory = nullptr;  // This rank's node has it; null where no two ranks share one.
  std::string why_flat = {};  // Where ranks of a node could not have memory in common: which, and what the system said.
  NodeLayout neighbours = NodeLayout::flat(1);  // Ranks that could reach each other locally, with memory or without.

  // So many ranks, each by itself, which did not ask each other.
  static std::shared_ptr<const FoundNodes> flat(int64_t world_size) {
    return std::make_shared<const FoundNodes>(
        FoundNodes{.layout = NodeLayout::flat(world_size), .neighbours = NodeLayout::flat(world_size)});
  }
};

// What the ranks of a group have found out together, kept as long as the group lives: values by keys, which can be
// compared for equality. A group does not tell when it is destroyed: what those that are gone had is freed by the next
// search. Thread-safe; nothing waits for other ranks under its lock, as ranks may be threads of one process.
template <class Key, class Value>
class KeptByGroup {
 public:
  using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

  // Null if nothing is kept under that key.
  std::shared_ptr<const Value> find(const Group& group, const Key& key) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::erase_if(groups_, [](const auto& entry) { return entry.second.group.expired(); });
    const auto known = groups_.find(group.get());
    if (known != groups_.end()) {
      for (const auto& [other, value] : known->second.values) {
        if (other == key) {
          return value;
        }
      }
    }
    return nullptr;
  }

  // From now on.
  void keep(const Group& group, Key key, std::shared_ptr<const Value> value) {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto& entry = groups_.try_emplace(group.get(), Entry{Weak(group)}).first->second;
    entry.values.emplace_back(std::move(key), std::move(value));
  }

 private:
  using Weak = c10::weak_intrusive_ptr<c10d::ProcessGroup>;
  struct Entry {
    Weak group;  // Keeps the group's address from being another one's.
    std::vector<std::pair<Key, std::shared_ptr<const Value>>> values = {};
  };
  std::mutex mutex_;
  std::map<const c10d::ProcessGroup*, Entry> groups_;
};

// A collective; needs a backend for CPU tensors. Ranks are on one node if they run as the same user, are in the same
// network namespace, and so share their cards, and can have memory in common. With `node_size` >= 1 every so many
// consecutive ranks are taken for a node; c10::ValueError on all ranks if two of one such node can have no memory in
// common. c10::DistBackendError if a peer or the network fails.
//
// What was found is kept, with its memory, as long as the group lives, and found again at no cost: a group does not
// tell when it is destroyed, so that the next call for any group frees what those that are gone had. After an exchange
// that failed in a node's memory, later ones of its ranks fail, too: the group is not usable any more, as after a
// failure of the network.
NARROWCAST_EXPORT std::shared_ptr<const FoundNodes> find_nodes(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                                               std::optional<int64_t> node_size = std::nullopt);

}  // namespace narrowcast::node
