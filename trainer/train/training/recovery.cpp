#include "trainer/train/training/recovery.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include <narrowcast/errors.h>
#include "hooks/row/bucket.h"
#include "trainer/base/files/json.h"
#include "trainer/ddp/recovery/shared_state.h"
#include "trainer/train/training/training_state.h"

namespace narrowcast::training {
namespace {

using checkpoint::Content;
using nlohmann::json;

constexpr const char* kName = "recovery of lost ranks";
constexpr const char* kReplica = "replica.";  // before the names of Content::replica in RankState::own
constexpr const char* kRank = "rank.";        // and of Content::rank

// Numbers the points in their order. At the same step, a state with a whole optimizer is further than one with a shard:
// after a change between both, only one kind is then a source of the others.
int64_t point_of(const SurvivingState& state) {
  return 4 * state.content.step + (state.is_reported ? 2 : 0) + (state.optimizer.has_value() ? 0 : 1);
}

// Whether ranks offer values of parameters. All ranks name them, also those that hold none themselves.
bool has_values(const std::optional<pieces::HeldPieces>& held) {
  return held &&
         std::ranges::any_of(held->numels, [](const auto& entry) { return is_of_values({.name = entry.first}); });
}

// Counters of times, and all of Content::rank, differ between ranks.
recovery::RankState rank_state(const SurvivingState& state) {
  if (!state.why_unusable.empty()) {
    return {.why_unusable = state.why_unusable};
  }
  recovery::RankState result = {.point = point_of(state),
                                .values = json({{"step", state.content.step},
                                                {"is_reported", state.is_reported},
                                                {"world_size", state.world_size},
                                                {"is_sharded", state.optimizer.has_value()},
                                                {"has_values", has_values(state.optimizer)},
                                                {"training", state.content.training}})
                                              .dump()};
  for (const auto& [name, tensor] : state.content.replica) {
    if (is_counter(name)) {
      result.own[kReplica + name] = tensor;
    } else {
      result.common[name] = tensor;
    }
  }
  for (const auto& [name, tensor] : state.content.rank) result.own[kRank + name] = tensor;
  if (state.optimizer) {
    result.held = state.optimizer->holding();
  }
  return result;
}

}  // namespace

void read_values(const std::string& text, RecoveredState& recovered) {
  const json values = files::parse_json(text, kName);
  try {
    recovered.restored.step = values.at("step").get<int64_t>();
    recovered.is_reported = values.at("is_reported").get<bool>();
    recovered.former_ranks = values.at("world_size").get<int64_t>();
    recovered.restored.training = values.at("training");
    if (values.at("is_sharded").get<bool>()) recovered.restored.pieces.emplace();
    recovered.restored.pieces_have_values = values.at("has_values").get<bool>();
  } catch (const json::exception& error) {
    NARROWCAST_CHECK_INPUT(false, kName, ": the first source's values: ", files::problem_with(error));
  }
  NARROWCAST_CHECK_INPUT(recovered.restored.step >= 0 && recovered.former_ranks >= 1, kName,
                         ": the first source's values: step ", recovered.restored.step, ", ", recovered.former_ranks,
                         " ranks");
}

std::optional<RecoveredState> share_states(const ProcessGroupPtr& group, std::optional<SurvivingState> own,
                                           std::string* why_nothing) {
  std::vector<SurvivingState> states;
  if (own.has_value()) {
    states = std::exchange(own->earlier, {});
    states.push_back(*std::move(own));
  }
  std::vector<recovery::RankState> held;
  std::ranges::transform(states, std::back_inserter(held), rank_state);
  std::optional<recovery::SharedState> shared = recovery::share_states(group, std::move(held), why_nothing);
  if (!shared.has_value()) {
    return std::nullopt;
  }
  RecoveredState recovered;
  recovered.lost_ranks = std::move(shared->lost_ranks);
  recovered.restored.path = c10::str("the memory of rank ", shared->first_source);
  read_values(shared->state.values, recovered);
  recovered.restored.former.world_size = recovered.former_ranks;
  recovered.restored.replica = std::move(shared->state.common);
  recovered.restored.replica.merge(hooks::part_of(shared->state.own, kReplica));
  checkpoint::TensorMap of_rank = hooks::part_of(shared->state.own, kRank);
  if (std::ranges::any_of(of_rank,
                          [](const auto& entry) { return entry.first.find(hooks::kResidual) != std::string::npos; })) {
    recovered.lost_residuals = recovered.former_ranks - shared->sources;
  }
  if (shared->is_received) {
    recovered.restored.former.first = std::move(of_rank);
  } else {
    recovered.restored.former.states = {std::move(of_rank)};
    const auto found = std::ranges::find(states, shared->state.point, point_of);
    if (recovered.restored.pieces) *recovered.restored.pieces = std::move(found->optimizer.value().pieces);
  }
  if (recovered.former_ranks != group->getSize()) {
    for (checkpoint::TensorMap& state : recovered.restored.former.states) {
      scale_window_loss(state, static_cast<double>(recovered.former_ranks) / static_cast<double>(shared->sources));
    }
  }
  return recovered;
}

}  // namespace narrowcast::training
