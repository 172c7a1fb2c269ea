// The pieces of a training's state that ranks hold together, for recovery in place.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>

#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "trainer/ddp/sharding/sharded_parts.h"
#include "trainer/ddp/shards/shards.h"
#include "trainer/train/optimization/optimizer.h"
#include "trainer/train/training/training_state.h"

namespace narrowcast::training {
namespace {

using checkpoint::Content;
using checkpoint::Restored;
using checkpoint::TensorMap;

constexpr const char* kValue = "value";  // the tensor of a piece of a parameter
constexpr char kOfValues = '.';          // ends the names of ranges of parameters; names of parameters never end so

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

// The elements of parameters, for recovery.
std::vector<pieces::Range> ranges_of(const std::vector<hooks::NamedParameter>& parameters) {
  std::vector<pieces::Range> ranges;
  for (const hooks::NamedParameter& parameter : parameters) {
    ranges.push_back({parameter.name + kOfValues, 0, parameter.tensor.numel()});
  }
  return ranges;
}

// The state of whole parameters, as optimizer_state returns it. `pieces`: one for each of the parameters.
TensorMap whole_state(const std::vector<pieces::Piece>& pieces, const std::vector<hooks::NamedParameter>& parameters) {
  const at::NoGradGuard no_grad;
  TensorMap state;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const std::string prefix = parameters[i].name + ".";
    if (pieces[i].step) state[prefix + "step"] = hooks::int_tensor(*pieces[i].step);
    for (const auto& [name, elements] : pieces[i].tensors) {
      at::Tensor& whole = state[prefix + name] = at::empty_like(parameters[i].tensor.detach());
      sharding::memory_of(whole, {0, 0, whole.numel()}).copy_(elements);
    }
  }
  return state;
}

}  // namespace

void load_pieces(const Restored& restored, const TrainingParts& parts) {
  if (!restored.pieces) {
    return;
  }
  const ProcessGroupPtr& group = parts.model.process_group();
  const torch::nn::Module& module = *parts.model.module();
  if (parts.sharded != nullptr) {
    sharding::ShardedParts& shards = parts.sharded->parts();
    shards.follow_buckets();  // There is nothing to move yet.
    std::vector<pieces::Range> ranges = shards.held_ranges(named_parameters(module));
    const auto held = std::ssize(ranges);
    const auto trained = shards.has_copies() ? trained_parameters_of(module) : std::vector<hooks::NamedParameter>();
    for (pieces::Range& range : ranges_of(trained)) ranges.push_back(std::move(range));
    std::vector<pieces::Piece> moved = pieces::move_pieces(group, *restored.pieces, ranges);
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < trained.size(); ++i) {
      sharding::memory_of_whole(trained[i].tensor).copy_(moved[held + i].tensors.at(kValue));
    }
    moved.resize(held);
    shards.take_pieces(moved);
    return;
  }
  const std::vector<hooks::NamedParameter> trained = trained_parameters_of(module);
  std::vector<pieces::Range> wanted;
  for (const hooks::NamedParameter& parameter : trained) {
    wanted.push_back({parameter.name, 0, parameter.tensor.numel()});
  }
  const std::vector<pieces::Piece> whole = pieces::move_pieces(group, *restored.pieces, wanted);
  load_optimizer_state(parts.optimizer, module, whole_state(whole, trained));
}

bool is_of_values(const pieces::Range& range) { return range.name.ends_with(kOfValues); }

std::optional<pieces::HeldPieces> held_state(const TrainingParts& parts, const Content& content) {
  std::optional<pieces::HeldPieces> held = held_pieces(parts);
  if (!held || !parts.sharded->parts().has_copies()) {
    return held;
  }
  const auto trained = trained_parameters_of(*parts.model.module());
  std::vector<pieces::Range> ranges = ranges_of(trained);
  for (const pieces::Range& range : ranges) held->numels[range.name] = range.numel();
  if (!parts.sharded->parts().has_all_parameters()) {
    ranges.clear();
    for (const pieces::Piece& piece : held->pieces) {
      ranges.push_back({piece.range.name + kOfValues, piece.range.begin, piece.range.end});
    }
  }
  for (const pieces::Range& range : ranges) {
    const std::string name = range.name.substr(0, range.name.size() - 1);
    const at::Tensor elements = sharding::memory_of_whole(content.replica.at(kModel + name));
    held->pieces.push_back({.range = range, .tensors = {{kValue, elements.narrow(0, range.begin, range.numel())}}});
  }
  return held;
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
