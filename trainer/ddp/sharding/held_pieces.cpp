// The pieces of a sharded optimizer's state that a rank holds: of its shard, and of its copies of other shards.
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <narrowcast/errors.h>
#include "ops/common/backend_errors.h"
#include "trainer/ddp/sharding/sharded_parts.h"

namespace narrowcast::sharding {
namespace {

constexpr const char* kMasterOfPiece = "master";

}  // namespace

std::vector<pieces::Range> ShardedParts::held_ranges(const std::vector<hooks::NamedParameter>& named) const {
  const std::vector<std::string> names = names_in(named);
  std::vector<pieces::Range> ranges;
  for (const Piece& piece : held_) {
    ranges.push_back({names[piece.parameter], piece.begin, piece.begin + piece.numel});
  }
  return ranges;
}

pieces::HeldPieces ShardedParts::held_pieces(const std::vector<hooks::NamedParameter>& named) const {
  const OptimizerKind& optimizer_kind = kind();
  const std::vector<std::string> names = names_in(named);
  pieces::HeldPieces held;
  for (size_t i = 0; i < parameters_.size(); ++i) held.numels[names[i]] = parameters_[i].numel();
  for (const pieces::Range& range : held_ranges(named)) {
    pieces::Piece piece = {.range = range};
    if (has_masters() && has_state_) {
      piece.tensors[kMasterOfPiece] = memory_of_whole(tensors_[held.pieces.size()]);
    }
    if (const std::optional<ParameterState> state = state_of(optimizer_kind, held.pieces.size())) {
      piece.step = state->step;
      for (size_t tensor = 0; tensor < state->tensors.size(); ++tensor) {
        const at::Tensor& value = state->tensors[tensor];
        if (!value.defined()) continue;
        piece.tensors[optimizer_kind.tensors[tensor]] = place_.cuts_parameters ? value : memory_of_whole(value);
      }
    }
    held.pieces.push_back(std::move(piece));
  }
  return held;
}

void ShardedParts::take_pieces(const std::vector<pieces::Piece>& pieces) {
  TORCH_INTERNAL_ASSERT(pieces.size() == tensors_.size());
  const at::NoGradGuard no_grad;
  const OptimizerKind& optimizer_kind = kind();
  std::vector<ParameterState> states;
  std::vector<at::Tensor> masters;
  // The state of a whole parameter has its shape and its order in memory.
  const auto in_shape_of_piece = [&](const at::Tensor& memory, size_t i) {
    return place_.cuts_parameters ? memory : memory.as_strided(tensors_[i].sizes(), tensors_[i].strides());
  };
  for (size_t i = 0; i < pieces.size(); ++i) {
    const auto& options = inner_.param_groups()[groups_[held_[i].parameter]].options();
    hooks::HookState left = pieces[i].tensors;
    const auto master = has_masters() ? left.extract(kMasterOfPiece) : hooks::HookState::node_type();
    masters.push_back(master ? master.mapped() : at::Tensor());
    const bool any = !left.empty() || pieces[i].step.has_value();
    ParameterState& state = states.emplace_back(ParameterState{.step = pieces[i].step});
    for (size_t tensor = 0; tensor < optimizer_kind.tensors.size(); ++tensor) {
      const auto found = left.extract(optimizer_kind.tensors[tensor]);
      state.tensors.push_back(found ? in_shape_of_piece(found.mapped(), i) : at::Tensor());
      NARROWCAST_CHECK_INPUT(found || !any || !optimizer_kind.needs(options, tensor), "the optimizer's '",
                             optimizer_kind.tensors[tensor], "' of ", pieces::describe(pieces[i].range), " is missing");
    }
    NARROWCAST_CHECK_INPUT(left.empty(), "the optimizer's '", left.begin()->first, "' of ",
                           pieces::describe(pieces[i].range), " is unknown");
    NARROWCAST_CHECK_INPUT(!any || state.step.has_value() == optimizer_kind.counts_steps(options),
                           "the optimizer's 'step' of ", pieces::describe(pieces[i].range), " is missing or unknown");
  }
  has_state_ = true;
  take_masters();
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (masters[i].defined()) memory_of_whole(tensors_[i]).copy_(masters[i]);
    const bool has_tensors =
        std::ranges::any_of(states[i].tensors, [](const auto& tensor) { return tensor.defined(); });
    if (has_tensors || states[i].step) set_state(optimizer_kind, i, states[i]);
  }
}

bool ShardedParts::has_all_parameters() const { return place_.over_all == nullptr || place_.over_all->is_complete(); }

// Without masters, the pieces are the parameters' memory.
void ShardedParts::finish_held() {
  if (has_all_parameters() || !has_masters()) {
    return;
  }
  const at::NoGradGuard no_grad;
  std::vector<int64_t> shards = {place_.exchange->own()};
  if (has_copies()) shards.insert(shards.end(), place_.copies->owners().begin(), place_.copies->owners().end());
  auto master = tensors_.begin();
  for (const int64_t shard : shards) {
    Elements masters;
    for (size_t i = 0; i < shards_[shard].size(); ++i) masters.add(memory_of_whole(*master++));
    place_.over_all->finish_alone(shard, *place_.differences, masters, elements_of_parameters(shards_[shard]));
  }
}

void ShardedParts::step_alone() {
  const at::NoGradGuard no_grad;
  TORCH_INTERNAL_ASSERT(has_shared_gradients_ && place_.over_all != nullptr);
  if (failure_) std::rethrow_exception(failure_);
  if (!std::exchange(has_state_, true)) {
    take_masters();
  }
  step_pieces();
  place_.over_all->begin_alone();
  finish_held();
}

std::exception_ptr ShardedParts::meet() {
  constexpr const char* kName = "agreeing on the next step";
  const std::vector<std::vector<int64_t>> failures = gather_numbers(kName, {failure_ ? 1 : 0});
  try {
    if (failure_) {
      std::rethrow_exception(failure_);
    }
    for (size_t rank = 0; rank < failures.size(); ++rank) {
      if (!failures[rank].empty() && failures[rank][0] != 0) {
        throw_backend_error(place_.group->getRank(), kName, c10::str("rank ", rank, " cannot take it"));
      }
    }
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

}  // namespace narrowcast::sharding
