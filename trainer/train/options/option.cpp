#include "trainer/train/options/option.h"

#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

#include <cmath>

namespace narrowcast::options {
namespace {

std::string resume_text(const Option& option) {
  if (!option.resume_note.empty()) {
    return option.resume_note;
  }
  switch (option.role) {
    case Role::kSetting:
      return "must be the same";
    case Role::kCircumstance:
      return "may differ; bits change";
    case Role::kFree:
      return "may differ";
  }
  TORCH_CHECK(false, option.flag, ": has no role");
}

std::string values_text(const Option& option) {
  const std::string range = option.range.is_given() ? option.range.text() : "";
  return absl::StrCat(option.unit, option.unit.empty() || range.empty() ? "" : ", ", range);
}

}  // namespace

bool Range::contains(double value) const {
  const bool is_above = !least || (without_least ? value > *least : value >= *least);
  const bool is_below = !most || (without_most ? value < *most : value <= *most);
  return std::isfinite(value) && is_above && is_below;
}

std::string Range::text() const {
  if (least && most) {
    if (without_least) {
      return absl::StrCat("above ", *least, without_most ? " and below " : " and at most ", *most);
    }
    return without_most ? absl::StrCat("at least ", *least, " and below ", *most)
                        : absl::StrCat("in ", *least, "..", *most);
  }
  if (!least) {
    return most ? absl::StrCat("at most ", *most) : "";
  }
  if (without_least) {
    return *least == 0 ? "positive" : absl::StrCat("above ", *least);
  }
  return absl::StrCat("at least ", *least);
}

std::vector<Option> joined(std::initializer_list<std::vector<Option>> parts) {
  std::vector<Option> all;
  for (const std::vector<Option>& part : parts) {
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

void check_ranges(const std::vector<Option>& options) {
  for (const Option& option : options) {
    if (!option.range.is_given()) {
      continue;
    }
    const nlohmann::json value = option.variable.value();
    TORCH_CHECK_VALUE(value.is_null() || option.range.contains(value.get<double>()), option.flag, ": must be ",
                      option.range.text(), ", but is ", value.is_number_integer() ? value.dump() : "",
                      value.is_number_float() ? c10::str(value.get<double>()) : "");
  }
}

nlohmann::json planned_value(const Option& option) {
  nlohmann::json value = option.planned ? option.planned() : option.variable.value();
  return value == "" ? nlohmann::json() : value;
}

program::Flag flag_of(const Option& option) {
  return {.name = option.flag,
          .variable = option.variable,
          .default_value = option.usual.value_or(option.variable.text),
          .help = option.help,
          .values = values_text(option)};
}

program::Flag resumable_flag_of(const Option& option) {
  program::Flag flag = flag_of(option);
  flag.at_resume = resume_text(option);
  return flag;
}

}  // namespace narrowcast::options
