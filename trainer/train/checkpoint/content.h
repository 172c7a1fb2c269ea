// What a checkpoint holds, as tensors by name.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace narrowcast::checkpoint {

using TensorMap = std::map<std::string, at::Tensor>;

// What one rank gives.
struct Content {
  int64_t step = 0;         // optimizer steps done
  nlohmann::json training;  // for the manifest: small things that are the same on all ranks
  TensorMap replica;        // the same on all ranks; rank 0 writes it
  TensorMap rank;           // this rank's own
};

// What one rank takes up. The world may have another size than the one that wrote.
struct Restored {
  int64_t step = 0;
  int64_t world_size = 1;  // of those who wrote
  nlohmann::json training;
  TensorMap replica;
  std::vector<TensorMap> ranks;  // what ranks r, r + W, r + 2W, ... wrote, for rank r of W: each is with one rank
  TensorMap first_rank;          // where `ranks` is empty: what rank 0 wrote
  std::string path;              // of the checkpoint, for messages

  // This rank's own, or what comes nearest to it.
  const TensorMap& own() const { return ranks.empty() ? first_rank : ranks[0]; }
};

}  // namespace narrowcast::checkpoint
