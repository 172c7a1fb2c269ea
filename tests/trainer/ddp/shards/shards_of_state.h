// Shards of a state whose elements all differ.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/ddp/shards/pieces.h"
#include "trainer/ddp/shards/shards.h"

namespace narrowcast::pieces {

inline const std::vector<int64_t> kNumels = {1000, 1, 64, 5000, 130, 0};

inline std::string name_of(size_t parameter) { return "p" + std::to_string(parameter); }

// Shard `own` of `count`.
inline std::vector<Range> ranges_of(int64_t count, int64_t own) {
  std::vector<Range> ranges;
  const std::vector<sharding::Shard> shards = sharding::cut_pieces(kNumels, count);
  for (const sharding::Piece& piece : shards[own]) {
    ranges.push_back({name_of(piece.parameter), piece.begin, piece.begin + piece.numel});
  }
  return ranges;
}

// All elements differ.
inline at::Tensor elements_of(const Range& range, int64_t tensor) {
  const int64_t parameter = std::stol(range.name.substr(1));
  return at::arange(range.begin, range.end, at::kFloat).add(1e5 * static_cast<double>(2 * parameter + tensor));
}

// p1 has taken no step.
inline HeldPieces held_pieces(int64_t count, int64_t own) {
  HeldPieces held;
  for (size_t i = 0; i < kNumels.size(); ++i) held.numels[name_of(i)] = kNumels[i];
  for (const Range& range : ranges_of(count, own)) {
    held.pieces.push_back({.range = range});
    if (range.name == "p1") continue;
    held.pieces.back().step = 7;
    held.pieces.back().tensors = {{"exp_avg", elements_of(range, 0)}, {"exp_avg_sq", elements_of(range, 1)}};
  }
  return held;
}

}  // namespace narrowcast::pieces
