// What a checkpoint holds, as tensors by name.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include <narrowcast/hook_state.h>

namespace narrowcast::checkpoint {

using TensorMap = hooks::HookState;

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
  nlohmann::json training;
  TensorMap replica;
  hooks::FormerRanks former;  // Content::rank of those who wrote
  std::string path;           // of the checkpoint, for messages
};

}  // namespace narrowcast::checkpoint
