#include "trainer/train/options/option_table.h"

#include <array>
#include <cstddef>
#include <functional>
#include <utility>

#include "trainer/train/options/exchange_rows.h"
#include "trainer/train/options/model_rows.h"
#include "trainer/train/options/output_rows.h"
#include "trainer/train/options/training_rows.h"

namespace narrowcast::options {
namespace {

struct GroupRow {
  Group group;
  const char* title;
  std::vector<Option> (*rows)(Arguments&);
  bool is_of_training = true;  // of a training, which may resume
};

// In the order of the enum.
constexpr std::array<GroupRow, 10> kGroups = {{
    {Group::kModel, "Model", model_rows},
    {Group::kData, "Data", data_rows},
    {Group::kTraining, "Training", training_rows},
    {Group::kProcessors, "Processors", processor_rows},
    {Group::kOutput, "Evaluation and output", output_rows},
    {Group::kCheckpoints, "Checkpoints", checkpoint_rows},
    {Group::kTrainedModel, "Use of a trained model", trained_model_rows, false},
    {Group::kExchange, "Exchange of gradients", exchange_rows},
    {Group::kPlace, "Place in the job", [](Arguments& arguments) { return place_options(arguments.place); }},
    {Group::kChecks, "Checks", check_rows, false},
}};

// The names of the group's flags for which keeps() is true.
std::vector<std::string> names_of(Group group, const std::function<bool(const Option&)>& keeps) {
  Arguments arguments;
  std::vector<std::string> names;
  for (const Option& option : options_of(group, arguments)) {
    if (keeps(option)) names.push_back(option.flag);
  }
  return names;
}

}  // namespace

std::vector<Group> all_groups() {
  std::vector<Group> groups;
  for (const GroupRow& row : kGroups) {
    groups.push_back(row.group);
  }
  return groups;
}

std::vector<Option> options_of(Group group, Arguments& arguments) {
  return kGroups.at(static_cast<size_t>(group)).rows(arguments);
}

std::vector<Option> all_options(Arguments& arguments) {
  std::vector<Option> all;
  for (const GroupRow& group : kGroups) {
    for (Option& option : group.rows(arguments)) {
      all.push_back(std::move(option));
    }
  }
  return all;
}

std::vector<std::string> flags_of(Group group) {
  return names_of(group, [](const Option&) { return true; });
}

std::vector<std::string> unverified_flags_of(Group group) {
  return names_of(group, [](const Option& option) { return !option.verified; });
}

std::vector<program::Flag> all_flags(Arguments& arguments) {
  std::vector<program::Flag> flags;
  for (const GroupRow& group : kGroups) {
    for (const Option& option : group.rows(arguments)) {
      flags.push_back(group.is_of_training ? resumable_flag_of(option) : flag_of(option));
    }
  }
  return flags;
}

std::vector<program::FlagGroup> flag_groups() {
  std::vector<program::FlagGroup> groups;
  for (const GroupRow& group : kGroups) {
    groups.push_back({group.title, flags_of(group.group)});
  }
  return groups;
}

void check_ranges_of(const job::TrainJob& job) {
  Arguments arguments(job);
  check_ranges(all_options(arguments));
}

}  // namespace narrowcast::options
