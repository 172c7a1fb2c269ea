#include "trainer/train/options/plan_entries.h"

#include <algorithm>
#include <map>
#include <utility>

#include "trainer/train/options/option_table.h"

namespace narrowcast::options {

using nlohmann::json;

namespace {

// An entry that is not an option.
struct ComputedEntry {
  const char* name;
  Group group;  // of the options from which it is computed
  Role role = Role::kSetting;
  bool is_compared = true;            // between ranks
  bool is_of_sums_in_levels = false;  // It affects the rounding of hierarchical sums.
};

constexpr ComputedEntry kComputedEntries[] = {
    {.name = "model_hash", .group = Group::kModel},
    {.name = "init_from_hash", .group = Group::kModel},
    {.name = "init_from_context", .group = Group::kModel, .role = Role::kFree},
    {.name = "model_options", .group = Group::kModel},
    // Options of models that do not come from flags. Checkpoints hold each option of the model by itself.
    {.name = "vocabulary_size", .group = Group::kModel},
    {.name = "inputs", .group = Group::kModel},
    {.name = "classes", .group = Group::kModel},
    {.name = "parameters", .group = Group::kModel},
    {.name = "data_hash", .group = Group::kData},
    {.name = "training_samples", .group = Group::kData},
    {.name = "held_out_samples", .group = Group::kData},
    {.name = "bigram_entropy", .group = Group::kData},
    {.name = "batch_size_per_rank", .group = Group::kTraining, .role = Role::kFree},
    {.name = "muon_parameters", .group = Group::kTraining},
    {.name = "tokens_per_step", .group = Group::kTraining},
    {.name = "samples_per_step", .group = Group::kTraining},
    {.name = "evaluate", .group = Group::kTrainedModel},
    {.name = "generate", .group = Group::kTrainedModel},
    {.name = "hooks", .group = Group::kExchange},
    {.name = "auto", .group = Group::kExchange, .role = Role::kFree},
    {.name = "replicas", .group = Group::kExchange, .role = Role::kFree},
    {.name = "payload_bytes_per_step_and_rank", .group = Group::kExchange, .role = Role::kFree, .is_compared = false},
    {.name = "least_payload_bytes_per_step_and_rank",
     .group = Group::kExchange,
     .role = Role::kFree,
     .is_compared = false},
    {.name = "payload_bytes_per_exchange_and_rank",
     .group = Group::kExchange,
     .role = Role::kFree,
     .is_compared = false},
    {.name = "version", .group = Group::kPlace, .role = Role::kCircumstance},
    {.name = "ranks", .group = Group::kPlace, .role = Role::kCircumstance},
    {.name = "network", .group = Group::kPlace, .role = Role::kFree},
    {.name = "nodes", .group = Group::kPlace, .role = Role::kFree, .is_compared = false, .is_of_sums_in_levels = true},
    {.name = "node_of_rank",
     .group = Group::kPlace,
     .role = Role::kFree,
     .is_compared = false,
     .is_of_sums_in_levels = true},
    {.name = "exchange_levels", .group = Group::kPlace, .role = Role::kFree, .is_compared = false},
    {.name = "node_memory_bytes", .group = Group::kPlace, .role = Role::kFree, .is_compared = false},
    {.name = "optimizer_shards", .group = Group::kPlace, .role = Role::kFree, .is_compared = false},
    {.name = "optimizer_bytes", .group = Group::kPlace, .role = Role::kFree, .is_compared = false},
    {.name = "parameter_bytes_per_step_and_rank", .group = Group::kPlace, .role = Role::kFree, .is_compared = false},
    {.name = "newton_schulz", .group = Group::kPlace, .role = Role::kCircumstance, .is_compared = false},
    {.name = "group_of_rank",
     .group = Group::kPlace,
     .role = Role::kCircumstance},  // It determines from whose parameters a rank resumes.
    {.name = "rounding", .group = Group::kPlace, .role = Role::kFree},
    {.name = "link", .group = Group::kPlace, .role = Role::kFree},
    {.name = "connections_in_use", .group = Group::kPlace, .role = Role::kFree},
    {.name = "why_one_level", .group = Group::kPlace, .role = Role::kFree},
};

// These entries come first, independent of their groups.
constexpr const char* kFirst[] = {"data", "data_hash", "version"};

// Null for an entry that is not computed.
const ComputedEntry* computed_entry(const std::string& name) {
  const auto* const found = std::ranges::find(kComputedEntries, name, &ComputedEntry::name);
  return found == std::end(kComputedEntries) ? nullptr : found;
}

// The role of each option that is an entry of the plan.
const std::map<std::string, Role>& option_roles() {
  static const std::map<std::string, Role> roles = [] {
    Arguments arguments;
    std::map<std::string, Role> all;
    for (const Option& option : all_options(arguments)) {
      if (option.in_plan != InPlan::kNo) all.emplace(option.flag, option.role);
    }
    return all;
  }();
  return roles;
}

size_t place_of(const std::string& name) {
  static const std::map<std::string, size_t> places = [] {
    std::map<std::string, size_t> all;
    for (const std::string& entry : entries_by_cause()) {
      all.emplace(entry, all.size());
    }
    return all;
  }();
  const auto found = places.find(name);
  return found == places.end() ? places.size() : found->second;
}

}  // namespace

void add_options(json& plan, const job::TrainJob& job) {
  Arguments arguments(job);
  for (const Option& option : all_options(arguments)) {
    if (option.in_plan != InPlan::kValue || (job.verification.has_value() && !option.verified)) continue;
    json value = planned_value(option);
    if (!value.is_null()) plan[option.flag] = std::move(value);
  }
}

Role role_of_entry(const json& plan, const std::string& name) {
  if (const ComputedEntry* const computed = computed_entry(name)) {
    const bool in_levels = plan.value("exchange_levels", 1) > 1;
    return in_levels && computed->is_of_sums_in_levels ? Role::kCircumstance : computed->role;
  }
  const auto option = option_roles().find(name);
  return option == option_roles().end() ? Role::kSetting : option->second;
}

const std::vector<std::string>& entries_by_cause() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all(std::begin(kFirst), std::end(kFirst));
    const auto add = [&](const std::string& name) {
      if (std::ranges::find(all, name) == all.end()) all.push_back(name);
    };
    for (const Group group : all_groups()) {
      for (const std::string& flag : flags_of(group)) {
        add(flag);
      }
      for (const ComputedEntry& entry : kComputedEntries) {
        if (entry.group == group) add(entry.name);
      }
    }
    return all;
  }();
  return names;
}

std::vector<NamedValue> compared_values(const json& plan) {
  std::vector<NamedValue> values;
  for (const auto& [name, value] : plan.items()) {
    const ComputedEntry* const computed = computed_entry(name);
    if (computed == nullptr || computed->is_compared) {
      values.push_back({name, value.is_string() ? value.get<std::string>() : value.dump()});
    }
  }
  std::ranges::stable_sort(values, {}, [](const NamedValue& value) { return place_of(value.name); });
  return values;
}

}  // namespace narrowcast::options
