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

// What a rank takes up. As many ranks as left it: each takes up its own.
struct SavedHookState {
  int64_t world_size = 1;  // of the ranks that left it
  std::vector<HookState>
      ranks;        // each former rank's is with one rank: in a smaller world several, in a larger maybe none
  HookState first;  // where there is none: former rank 0's

  const HookState& own() const { return ranks.empty() ? first : ranks[0]; }
};

// A 64-bit integer as a tensor, and back. int_of throws CorruptInputError naming what is missing or no such number.
NARROWCAST_EXPORT at::Tensor int_tensor(int64_t value);
NARROWCAST_EXPORT int64_t int_of(const HookState& state, const std::string& name);

}  // namespace narrowcast::hooks
