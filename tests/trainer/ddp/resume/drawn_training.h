// A data-parallel training drawn from a seed: hook, options, module, number of ranks and steps.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <narrowcast/ddp_options.h>
#include <narrowcast/outer_options.h>
#include "tests/trainer/ddp/resume/drawn_net.h"

namespace narrowcast::testing {

// The modes of the Reducer in which passes differ.
enum class DrawnMode { kUsual, kStaticGraph, kUnusedParameters };
inline constexpr uint64_t kDrawnModes = 3;

struct DrawnTraining {
  uint64_t seed = 0;
  int64_t world_size = 1;
  DrawnMode mode = DrawnMode::kUsual;
  DdpOptions ddp = {};
  std::optional<OuterOptions> outer = std::nullopt;
  DrawnNetOptions net = {};
  bool ranks_differ = false;  // Whether ranks use different optional layers.
  int64_t micro_batches = 1;  // Per step; all but the last one are in no_sync.
  bool rescales = false;      // The hook's state is rescaled after some steps.
  bool evaluates = false;     // Forward passes without gradients come between steps.
  int64_t steps_before = 1;   // At least, until the state is saved: until the buckets are settled.
  int64_t steps_after = 1;
};

// The number of pairs of a hook and a mode.
uint64_t drawn_pairs();

// The seed determines the hook and the mode directly: the first drawn_pairs() seeds give every pair, with 2 to 4 ranks.
DrawnTraining draw_training(uint64_t seed);
std::string text_of(const DrawnTraining& training);

}  // namespace narrowcast::testing
