// Texts that ranks send each other before they share their states (shared_state.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "trainer/base/files/safetensors_header.h"
#include "trainer/ddp/shards/pieces.h"

namespace narrowcast::recovery {

inline constexpr const char* kStep = "recovery of lost ranks";

// Names in an inventory:
inline constexpr const char* kCommon = "common.";  // before the names of RankState::common
inline constexpr const char* kOwn = "own.";        // and of RankState::own
inline constexpr const char* kValues = "values";   // RankState::values

// The states that a rank holds.
struct HeldStates {
  std::map<int64_t, pieces::Holding> held;  // by point, if they can be used
  std::string why_unusable;

  bool has(int64_t point) const { return held.contains(point); }
  bool is_lost() const { return held.empty() && why_unusable.empty(); }
};

// Parses the text of a rank's states: {"why_unusable": "...", "states": [[POINT, HOLDING], ...]}. Throws
// CorruptInputError for another one.
HeldStates parse_held_states(const std::string& text, int64_t rank);

// Tensors of the sources, by name, and from which source each comes.
struct Inventory {
  struct Part {
    std::string name;
    files::TensorEntry entry;
    size_t source = 0;  // index among the sources
  };
  std::vector<Part> parts;
  std::string values;
};

// Parses an inventory: the bytes of all tensors, a space, and the header of a safetensors file. Throws
// CorruptInputError for another text. `sources` is at least 1.
Inventory read_inventory(const std::string& text, size_t sources);

}  // namespace narrowcast::recovery
