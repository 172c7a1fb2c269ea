// The row of an option. The flag, the entry of the plan, the comparison between ranks, the comparison with a
// checkpoint, --help and docs/reference/flags.md are derived from it.
#pragma once

#include <functional>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "trainer/base/program/flag.h"
#include "trainer/base/program/variable.h"

namespace narrowcast::options {

// The groups of --help, in its order.
enum class Group {
  kModel,
  kData,
  kTraining,
  kProcessors,
  kOutput,
  kCheckpoints,
  kTrainedModel,
  kExchange,
  kPlace,
  kChecks,
};

// The meaning of a value for a training that resumes from a checkpoint.
enum class Role {
  kSetting,       // Another value would make it another training: a resumed one must have the same.
  kCircumstance,  // A resumed training may have another value, but then its bits differ.
  kFree,          // It has no influence on the parameters, or follows from others.
};

// Whether an option is an entry of the plan, under the name of its flag.
enum class InPlan {
  kNo,        // It is not an entry, or is part of an entry with another name.
  kValue,     // Its value, or the result of Option::planned.
  kComputed,  // make_plan (plan.h) computes the entry from it and from the data and files that were read.
};

// The values that a number may have. Inf and NaN are in no range, even in one without bounds.
struct Range {
  std::optional<double> least = std::nullopt;
  std::optional<double> most = std::nullopt;
  bool without_least = false;
  bool without_most = false;

  bool is_given() const { return least.has_value() || most.has_value(); }
  bool contains(double value) const;

  // "at least 1", "in 0..1", "at least 0 and below 1".
  std::string text() const;
};

inline Range at_least(double least) { return {.least = least}; }
inline Range positive() { return {.least = 0, .without_least = true}; }

// In 0..1, where 1 may be excluded.
inline Range share() { return {.least = 0, .most = 1}; }
inline Range share_below_one() { return {.least = 0, .most = 1, .without_most = true}; }

struct Option {
  std::string flag;            // its name, also in the plan and in messages
  program::Variable variable;  // the member that it sets
  std::string help;            // sentences

  // The default as --help prints it, if it differs from the member's value.
  std::optional<std::string> usual = std::nullopt;

  std::string unit = {};  // or the allowed values, if `range` cannot express them; for people
  Range range = {};       // check_ranges refuses other values
  InPlan in_plan = InPlan::kNo;
  Role role = Role::kFree;

  // With InPlan::kValue: returns the entry, if it differs from the member's value; a null entry is left out.
  std::function<nlohmann::json()> planned = nullptr;

  // Whether a verification of gradients accepts the option. With InPlan::kValue its plan then has the entry.
  bool verified = false;

  std::string resume_note = {};  // for docs/reference/flags.md, if the role is not enough
};

// The concatenated rows of all parts.
std::vector<Option> joined(std::initializer_list<std::vector<Option>> parts);

// For Option::planned: no entry for 0.
template <class Number>
nlohmann::json if_above_zero(Number value) {
  return value > 0 ? nlohmann::json(value) : nlohmann::json();
}

// Throws c10::ValueError "NAME: must be at least 1, but is 0" for the first value that is out of its option's range.
// Options without a value are in range.
void check_ranges(const std::vector<Option>& options);

// The entry of the plan of an option with InPlan::kValue; null: no entry. An empty text makes no entry.
nlohmann::json planned_value(const Option& option);

// The flag that sets the option's member, in a program that cannot resume and in a training, which can.
program::Flag flag_of(const Option& option);
program::Flag resumable_flag_of(const Option& option);

}  // namespace narrowcast::options
