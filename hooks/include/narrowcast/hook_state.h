// What a hook keeps over a restart of the training.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <narrowcast/export.h>

namespace narrowcast::hooks {

// A parameter, under the name by which saved state knows it.
struct NamedParameter {
  std::string name;
  at::Tensor tensor;
};

// Tensors by name, on any device; the names are the hook's own.
using HookState = std::map<std::string, at::Tensor>;

// What the ranks of an earlier run left, as one rank of the run that goes on from there gets it. The two worlds may
// differ in size. Rank r of a world of W gets what the former ranks r, r + W, r + 2 W, ... left, so that each of them
// is with exactly one rank: in a world of the former size every rank gets its own, in a smaller one some get that of
// several, and in a larger one the last ranks get none.
struct FormerRanks {
  int64_t world_size = 1;         // how many former ranks there were
  std::vector<HookState> states;  // of those that this rank gets, in their order
  HookState first;                // of former rank 0, where `states` is empty

  // Of the former rank with this one's number or, where there was none, of former rank 0.
  const HookState& own() const { return states.empty() ? first : states[0]; }
};

// A 64-bit integer as a tensor, and back. int_of throws CorruptInputError naming what is missing or no such number.
NARROWCAST_EXPORT at::Tensor int_tensor(int64_t value);
NARROWCAST_EXPORT int64_t int_of(const HookState& state, const std::string& name);

}  // namespace narrowcast::hooks
