// The option `levels` of averages over ranks: of hooks, and of the quantised all-reduce.
#pragma once

#include <string_view>

#include <narrowcast/export.h>

namespace NARROWCAST_EXPORT narrowcast {

// Number of levels of an average if several ranks share a node and its NIC.
enum class Levels {
  kAuto,  // Two levels if two ranks share a node, else one.
  kOne,   // Every rank exchanges messages with every other.
  kTwo,   // Ranks of a node sum in its memory; each byte crosses its NIC once. An error if no ranks share a node.
};

// "auto", "one", "two". c10::ValueError for an invalid value.
std::string_view to_string(Levels levels);

// The inverse of to_string. c10::ValueError for other names.
Levels parse_levels(std::string_view name);

}  // namespace narrowcast
