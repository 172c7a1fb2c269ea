#include "trainer/train/training/training_state.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <c10/util/Exception.h>

#include <ATen/ops/empty_like.h>
#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <narrowcast/errors.h>
#include "ops/common/text.h"
#include "trainer/ddp/sharding/sharded_parts.h"
#include "trainer/ddp/shards/shards.h"
#include "trainer/train/files/model_file.h"
#include "trainer/train/optimization/optimizer.h"

namespace narrowcast::training {
namespace {

using checkpoint::Content;
using checkpoint::Restored;
using checkpoint::TensorMap;
using nlohmann::json;

constexpr const char* kOptimizer = "optimizer.";
constexpr const char* kHook = "hook.";
constexpr const char* kOuter = "outer.";
constexpr const char* kScaler = "gradient_scaler.";
constexpr const char* kCounters = "counters.";
constexpr const char* kWindowLoss = "counters.window_loss";
constexpr const char* kParameterBytes = "counters.parameter_bytes";  // ShardedOptimizer::payload_bytes_sent of a rank
constexpr const char* kShares = "shares";                            // in the manifest, as are the groups
constexpr const char* kGroups = "groups";                            // in the manifest

std::string counter(const char* name) { return std::string(kCounters) + name; }

// Values are float64 or int64 tensors: text would lose bits, and cannot hold infinities.
void put(TensorMap& tensors, const char* name, double value) {
  tensors[counter(name)] = at::full({}, value, at::kDouble);
}
void put(TensorMap& tensors, const char* name, int64_t value) {
  tensors[counter(name)] = at::full({}, value, at::kLong);
}
template <class Number>
void put(TensorMap& tensors, const char* name, const std::optional<Number>& value) {
  if (value.has_value()) {
    put(tensors, name, *value);
  }
}

template <class Number>
Number number_of(const TensorMap& tensors, const std::string& name) {
  const auto found = tensors.find(name);
  NARROWCAST_CHECK_INPUT(found != tensors.end(), "'", name, "' is missing");
  const at::ScalarType dtype = std::is_same_v<Number, double> ? at::kDouble : at::kLong;
  NARROWCAST_CHECK_INPUT(found->second.scalar_type() == dtype && found->second.numel() == 1, "'", name,
                         "' is not a number of type ", dtype);
  return found->second.item<Number>();
}

void get(const TensorMap& tensors, const char* name, double& value) {
  value = number_of<double>(tensors, counter(name));
}
void get(const TensorMap& tensors, const char* name, int64_t& value) {
  value = number_of<int64_t>(tensors, counter(name));
}
template <class Number>
void get(const TensorMap& tensors, const char* name, std::optional<Number>& value) {
  if (tensors.count(counter(name)) > 0) {
    value = number_of<Number>(tensors, counter(name));
  }
}

// Calls `field(name, member)` for each counter on which all ranks agree.
template <class SomeCounters, class Field>
void each_shared(SomeCounters& counters, const Field& field) {
  field("skipped_steps", counters.skipped_steps);
  field("skipped_in_a_row", counters.skipped_in_a_row);
  field("seconds", counters.seconds);
  field("training_loss", counters.training_loss);
  field("validation_loss", counters.validation_loss);
  field("validation_accuracy", counters.validation_accuracy);
  field("gradient_norm", counters.gradient_norm);
  field("window_steps", counters.window_steps);
  field("window_batches", counters.window_batches);
  field("window_seconds", counters.window_seconds);
  field("best_validation_loss", counters.best_validation_loss);
  if (counters.best_validation_loss.has_value()) {  // Older checkpoints contain neither.
    field("evaluations_since_best", counters.evaluations_since_best);
  }
}

void add_prefixed(TensorMap& to, const std::string& prefix, const TensorMap& tensors) {
  for (const auto& [name, tensor] : tensors) {
    to[prefix + name] = tensor;
  }
}

// Whether each rank replaces the former rank with its number. This holds if the world has the former size and ranks
// average their gradients in the same groups.
bool have_same_places(const Restored& restored, const TrainingParts& parts) {
  return restored.former.world_size == parts.model.process_group()->getSize() &&
         restored.training.value(kGroups, json::array()) == json(parts.model.hook_groups());
}

// Removes the per-rank parts of a training whose replicas differed; rank 0's replica stays.
Restored with_replica_of_rank_0(Restored restored) {
  const auto drop = [](TensorMap& own) {
    std::erase_if(own, [](const auto& entry) {
      const std::string& name = entry.first;
      return name.starts_with(kModel) || name.starts_with(kOptimizer) || name.starts_with(kScaler) ||
             (name.starts_with(kCounters) && name != kWindowLoss);
    });
  };
  std::ranges::for_each(restored.former.states, drop);
  drop(restored.former.first);
  return restored;
}

// The state of the former rank that this rank replaces, if replicas differ; else the common state.
TensorMap replica_part(const Restored& restored, const std::string& prefix) {
  TensorMap own = hooks::part_of(restored.former.own(), prefix);
  return own.empty() ? hooks::part_of(restored.replica, prefix) : own;
}

// The position of the training in its order of samples.
json data_position(const TrainingParts& parts, int64_t step) {
  const int64_t position = step * parts.batch_size;
  return {{"samples", parts.order.size()},
          {"position", position},
          {"epoch", position / parts.order.size()},
          {"offset", position % parts.order.size()}};
}

void load_scaler(const TensorMap& saved, GradScaler* scaler) {
  if (scaler != nullptr) {
    scaler->load_state(saved);
  } else {
    NARROWCAST_CHECK_INPUT(saved.empty(), "it holds a gradient scaler, which this training does not have");
  }
}

void load_model(const TensorMap& saved, const torch::nn::Module& module) {
  const std::map<std::string, at::Tensor> state = files::state_of(module);
  for (const auto& [name, tensor] : state) {
    const auto found = saved.find(name);
    NARROWCAST_CHECK_INPUT(found != saved.end(), "the model's '", name, "' is missing");
    NARROWCAST_CHECK_INPUT(
        found->second.sizes() == tensor.sizes() && found->second.scalar_type() == tensor.scalar_type(), "the model's '",
        name, "' is ", found->second.scalar_type(), " ", found->second.sizes(), ", but must be ", tensor.scalar_type(),
        " ", tensor.sizes());
  }
  NARROWCAST_CHECK_INPUT(saved.size() == state.size(), "it has ", saved.size(), " tensors, but the model has ",
                         state.size());
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : state) {
    tensor.copy_(saved.at(name));
  }
}

void load_state_of_optimizer(const TrainingParts& parts, const TensorMap& state) {
  const torch::nn::Module& module = *parts.model.module();
  if (parts.sharded != nullptr) {
    parts.sharded->load_state(state, named_parameters(module));
  } else {
    load_optimizer_state(parts.optimizer, module, state);
  }
}

bool are_lists_of_names(const json& lists) {
  const auto is_name = [](const json& entry) { return entry.is_string(); };
  return lists.is_array() && std::ranges::all_of(lists, [&](const json& list) {
           return list.is_array() && std::ranges::all_of(list, is_name);
         });
}

ReducerState reducer_state_of(const Restored& restored) {
  const json buckets = restored.training.value("buckets", json());
  const json reductions = restored.training.value("reductions", json());
  NARROWCAST_CHECK_INPUT(are_lists_of_names(buckets), "its 'buckets' must be lists of names, but are ",
                         in_quotes(buckets.dump()));
  NARROWCAST_CHECK_INPUT(reductions.is_number_integer(), "its 'reductions' must be an integer, but is ",
                         in_quotes(reductions.dump()));
  ReducerState saved;
  saved.buckets = buckets.get<BucketNames>();
  saved.reductions = reductions.get<int64_t>();
  saved.hook = hooks::part_of(restored.former, kHook);
  return saved;
}

// Measured shares are of the ranks that wrote them.
void load_shares(const Restored& restored, const TrainingParts& parts) {
  const json shares = restored.training.value(kShares, json());
  if (parts.share_chooser == nullptr || shares.is_null() || !have_same_places(restored, parts)) {
    return;
  }
  const auto is_number = [](const json& share) { return share.is_number_integer(); };
  NARROWCAST_CHECK_INPUT(shares.is_array() && std::ranges::all_of(shares, is_number),
                         "its 'shares' must be a list of integers, but are ", in_quotes(shares.dump()));
  parts.share_chooser->resume(shares.get<std::vector<int64_t>>());
}

// With an outer optimizer, ranks whose places differ start from its parameters. With separate optimizers, the ranks of
// one group would drift apart.
Counters load_parts(const Restored& all, const TrainingParts& parts) {
  const bool same_places = have_same_places(all, parts);
  const Restored restored = parts.outer == nullptr || same_places ? all : with_replica_of_rank_0(all);
  NARROWCAST_CHECK_INPUT(restored.training.value("data", json()) == data_position(parts, restored.step),
                         "its position in the data is ", restored.training.value("data", json()).dump(),
                         ", but must be ", data_position(parts, restored.step).dump());
  const Counters counters = load_counters(restored, parts.model.process_group()->getSize());
  load_shares(restored, parts);
  const torch::nn::Module& module = *parts.model.module();
  parts.model.load_state(reducer_state_of(restored));
  load_model(replica_part(restored, kModel), module);
  if (!restored.pieces) {
    load_state_of_optimizer(parts, replica_part(restored, kOptimizer));  // Shards follow the buckets.
  }
  const TensorMap& own = restored.former.own();
  if (parts.sharded != nullptr && own.contains(kParameterBytes)) {
    *parts.parameter_bytes = number_of<int64_t>(own, kParameterBytes);
  }
  if (parts.outer != nullptr) {
    parts.outer->load_state({.replica = hooks::part_of(restored.replica, kOuter),
                             .rank = hooks::part_of(restored.former, kOuter),
                             .groups_differ = !same_places});
  }
  load_scaler(replica_part(restored, kScaler), parts.scaler);
  return counters;
}

}  // namespace

std::vector<hooks::NamedParameter> named_parameters(const torch::nn::Module& module) {
  std::vector<hooks::NamedParameter> named;
  for (const auto& [name, tensor] : files::state_of(module)) {
    named.push_back({name, tensor});
  }
  return named;
}

void compare_with_best(Counters& counters, double loss) {
  if (loss < counters.best_validation_loss.value_or(std::numeric_limits<double>::infinity())) {
    counters.best_validation_loss = loss;
    counters.evaluations_since_best = 0;
  } else {
    ++counters.evaluations_since_best;
  }
}

void save_counters(const Counters& counters, Content& content) {
  each_shared(counters, [&](const char* name, const auto& value) { put(content.replica, name, value); });
  content.rank[kWindowLoss] = at::full({}, counters.window_loss, at::kDouble);
}

void scale_window_loss(TensorMap& rank, double factor) {
  rank[kWindowLoss] = at::full({}, factor * number_of<double>(rank, kWindowLoss), at::kDouble);
}

bool is_counter(const std::string& name) { return name.starts_with(kCounters); }

Counters load_counters(const Restored& restored, int64_t world_size) {
  Counters counters;
  counters.step = restored.step;
  TensorMap shared = restored.replica;
  for (const auto& [name, tensor] : restored.former.own()) {
    shared.insert_or_assign(name, tensor);  // If replicas differ, each rank has separate counters.
  }
  each_shared(counters, [&](const char* name, auto& value) { get(shared, name, value); });
  for (const TensorMap& former : restored.former.states) {
    counters.window_loss += number_of<double>(former, kWindowLoss);
  }
  if (restored.former.world_size == world_size) {
    counters.window_loss = number_of<double>(restored.former.own(), kWindowLoss);
  } else {
    counters.window_loss *= static_cast<double>(world_size) / static_cast<double>(restored.former.world_size);
  }
  return counters;
}

Content save_training(const TrainingParts& parts, const Counters& counters) {
  Content content = save_without_shards(parts, counters, parts.model.state());
  if (parts.sharded != nullptr) {
    const torch::nn::Module& module = *parts.model.module();
    add_prefixed(content.replica, kOptimizer, parts.sharded->state(named_parameters(module)));
  }
  return content;
}

Content save_without_shards(const TrainingParts& parts, const Counters& counters, const ReducerState& reducer) {
  Content content = {.step = counters.step, .training = {}, .replica = {}, .rank = {}};
  content.training = {
      {"data", data_position(parts, counters.step)}, {"buckets", reducer.buckets}, {"reductions", reducer.reductions}};
  if (const std::vector<int64_t> groups = parts.model.hook_groups(); !groups.empty()) {
    content.training[kGroups] = groups;
  }
  if (parts.share_chooser != nullptr) {
    content.training[kShares] = parts.share_chooser->shares();
  }
  const torch::nn::Module& module = *parts.model.module();
  add_prefixed(content.replica, kModel, files::state_of(module));
  if (parts.sharded == nullptr) {
    add_prefixed(content.replica, kOptimizer, optimizer_state(parts.optimizer, module));
  }
  content.replica.merge(scaler_state(parts.scaler));
  if (!parts.model.keeps_replicas_equal()) {
    content.rank = content.replica;
  }
  if (parts.outer != nullptr) {
    const OuterState outer = parts.outer->state();
    add_prefixed(content.replica, kOuter, outer.replica);
    add_prefixed(content.rank, kOuter, outer.rank.own());
  }
  save_counters(counters, content);
  if (parts.sharded != nullptr) {
    content.rank[kParameterBytes] =
        at::full({}, *parts.parameter_bytes + parts.sharded->payload_bytes_sent(), at::kLong);
  }
  if (!parts.model.keeps_replicas_equal()) {
    add_prefixed(content.rank, kCounters, hooks::part_of(content.replica, kCounters));
  }
  add_prefixed(content.rank, kHook, reducer.hook.own());
  return content;
}

checkpoint::TensorMap replicated_state(const TrainingParts& parts) {
  const torch::nn::Module& module = *parts.model.module();
  TensorMap state;
  for (const auto& parameter : module.named_parameters()) state[kModel + parameter.key()] = parameter.value();
  if (parts.sharded == nullptr) {
    add_prefixed(state, kOptimizer, optimizer_state(parts.optimizer, module));
  }
  state.merge(scaler_state(parts.scaler));
  return state;
}

TensorMap scaler_state(const GradScaler* scaler) {
  TensorMap state;
  if (scaler != nullptr) {
    add_prefixed(state, kScaler, scaler->state());
  }
  return state;
}

Counters load_training(const Restored& restored, const TrainingParts& parts) {
  try {
    return load_parts(restored, parts);
  } catch (const CorruptInputError& error) {
    NARROWCAST_CHECK_INPUT(false, "checkpoint ", restored.path, ": ", error.what_without_backtrace());
  }
}

}  // namespace narrowcast::training
