// The pieces of a training's state that ranks hold together, for recovery in place.
#include <ATen/core/grad_mode.h>

#include <functional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include <narrowcast/errors.h>
#include "trainer/ddp/process_group/first_failure.h"
#include "trainer/ddp/sharding/sharded_parts.h"
#include "trainer/ddp/shards/shards.h"
#include "trainer/train/optimization/optimizer.h"
#include "trainer/train/training/training_state.h"

namespace narrowcast::training {
namespace {

using checkpoint::Content;
using checkpoint::Restored;
using checkpoint::TensorMap;

constexpr const char* kValue = "value";    // the tensor of a piece of a parameter
constexpr const char* kMaster = "master";  // and that of a shard's masters
constexpr char kOfValues = '.';            // ends the names of ranges of parameters; names of parameters never end so

// The parameters that the optimizer steps, under their first names.
std::vector<hooks::NamedParameter> trained_parameters_of(const torch::nn::Module& module) {
  std::vector<hooks::NamedParameter> trained;
  std::unordered_set<const at::TensorImpl*> seen;
  for (const hooks::NamedParameter& parameter : named_parameters(module)) {
    const bool has_elements = parameter.tensor.numel() > 0;
    if (has_elements && parameter.tensor.requires_grad() &&
        seen.insert(parameter.tensor.unsafeGetTensorImpl()).second) {
      trained.push_back(parameter);
    }
  }
  return trained;
}

// The state of a whole parameter, and its values.
pieces::Range range_of(const hooks::NamedParameter& parameter) { return {parameter.name, 0, parameter.tensor.numel()}; }
pieces::Range values_of(const hooks::NamedParameter& parameter) {
  return {parameter.name + kOfValues, 0, parameter.tensor.numel()};
}

// The state of whole parameters, as optimizer_state returns it, in the memory of the pieces. `pieces`: one for each of
// the parameters.
TensorMap whole_state(const std::vector<pieces::Piece>& pieces, const std::vector<hooks::NamedParameter>& parameters) {
  TensorMap state;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const std::string prefix = parameters[i].name + ".";
    const at::Tensor& parameter = parameters[i].tensor;
    if (pieces[i].step) state[prefix + "step"] = hooks::int_tensor(*pieces[i].step);
    for (const auto& [name, elements] : pieces[i].tensors) {
      state[prefix + name] = elements.as_strided(parameter.sizes(), parameter.strides());
    }
  }
  return state;
}

// The pieces that an optimizer without shards needs: all but the masters. All ranks leave them out.
std::vector<pieces::Piece> without_masters(std::vector<pieces::Piece> pieces) {
  for (pieces::Piece& piece : pieces) piece.tensors.erase(kMaster);
  return pieces;
}

}  // namespace

void load_pieces(const Restored& restored, const TrainingParts& parts, const std::function<void()>& have_own) {
  if (!restored.pieces) {
    return;
  }
  const torch::nn::Module& module = *parts.model.module();
  const std::vector<hooks::NamedParameter> trained = trained_parameters_of(module);
  sharding::ShardedParts* const shards = parts.sharded != nullptr ? &parts.sharded->parts() : nullptr;
  std::vector<pieces::Range> wanted;
  if (shards != nullptr) {
    shards->follow_buckets();  // There is nothing to move yet.
    wanted = shards->held_ranges(named_parameters(module));
  } else {
    for (const hooks::NamedParameter& parameter : trained) wanted.push_back(range_of(parameter));
  }
  const size_t of_state = wanted.size();
  for (size_t i = 0; restored.pieces_have_values && i < trained.size(); ++i) wanted.push_back(values_of(trained[i]));
  const auto& group = parts.model.process_group();
  std::vector<pieces::Piece> moved =
      pieces::move_pieces(group, shards != nullptr ? *restored.pieces : without_masters(*restored.pieces), wanted);
  const at::NoGradGuard no_grad;
  for (size_t i = of_state; i < moved.size(); ++i) {
    sharding::memory_of_whole(trained[i - of_state].tensor).copy_(moved[i].tensors.at(kValue));
  }
  moved.resize(of_state);
  // No rank goes on before all have what they need.
  const std::string failure = first_failure(group, [&] {
    if (shards != nullptr) {
      shards->take_pieces(moved);
    } else {
      load_optimizer_state(parts.optimizer, module, whole_state(moved, trained));
    }
    have_own();
  });
  NARROWCAST_CHECK_INPUT(failure.empty(), failure);
}

bool is_of_values(const pieces::Range& range) { return range.name.ends_with(kOfValues); }

std::optional<pieces::HeldPieces> held_state(const TrainingParts& parts, const Content& content) {
  std::optional<pieces::HeldPieces> held = held_pieces(parts);
  if (held && parts.sharded->parts().has_copies()) {
    add_values(parts, content, *held);
  }
  return held;
}

void add_values(const TrainingParts& parts, const Content& content, pieces::HeldPieces& held) {
  std::vector<pieces::Range> ranges;
  for (const hooks::NamedParameter& parameter : trained_parameters_of(*parts.model.module())) {
    ranges.push_back(values_of(parameter));
    held.numels[ranges.back().name] = ranges.back().numel();
  }
  if (!parts.sharded->parts().has_all_parameters()) {
    ranges.clear();
    for (const pieces::Piece& piece : held.pieces) {
      if (piece.range.numel() == 0) continue;
      ranges.push_back({piece.range.name + kOfValues, piece.range.begin, piece.range.end});
    }
  }
  for (const pieces::Range& range : ranges) {
    const std::string name = range.name.substr(0, range.name.size() - 1);
    const at::Tensor elements = sharding::memory_of_whole(content.replica.at(kModel + name));
    held.pieces.push_back({.range = range, .tensors = {{kValue, elements.narrow(0, range.begin, range.numel())}}});
  }
}

std::optional<pieces::HeldPieces> held_pieces(const TrainingParts& parts) {
  return parts.sharded == nullptr
             ? std::nullopt
             : std::optional(parts.sharded->parts().held_pieces(named_parameters(*parts.model.module())));
}

std::optional<pieces::HeldPieces> pieces_held_twice(const TrainingParts& parts) {
  const bool are_held_twice = parts.sharded != nullptr && parts.sharded->parts().is_held_elsewhere();
  return are_held_twice ? held_pieces(parts) : std::nullopt;
}

}  // namespace narrowcast::training
