#include "trainer/base/program/flag.h"

#include <absl/flags/commandlineflag.h>
#include <absl/flags/reflection.h>
#include <absl/time/time.h>
#include <c10/util/Exception.h>

#include <cstddef>
#include <cstdint>

#include "ops/common/error_message.h"
#include "ops/common/text.h"
#include "trainer/base/program/path_list.h"

namespace narrowcast::program {
namespace {

constexpr size_t kLongestShown = 1000;  // bytes

std::string abseil_type(const absl::CommandLineFlag& flag) {
  if (flag.IsOfType<bool>()) {
    return "yes/no";
  }
  if (flag.IsOfType<int32_t>() || flag.IsOfType<int64_t>() || flag.IsOfType<uint32_t>() || flag.IsOfType<uint64_t>()) {
    return "integer";
  }
  if (flag.IsOfType<double>() || flag.IsOfType<float>()) {
    return "number";
  }
  if (flag.IsOfType<std::string>()) {
    return "text";
  }
  if (flag.IsOfType<std::vector<std::string>>() || flag.IsOfType<PathList>()) {
    return "list";
  }
  return flag.IsOfType<absl::Duration>() ? "duration" : "value";
}

Flag abseil_flag(absl::CommandLineFlag& flag) {
  const auto set = [&flag](const std::string& text, std::string& reason) {
    std::string error;
    const bool good = flag.ParseFrom(text, &error);
    // Abseil's text is "Illegal value 'V' specified for flag 'F'", then "; REASON" if the type's parser gave one.
    const size_t end = error.find("'; ");
    if (end != std::string::npos) reason = error.substr(end + 3);
    return good;
  };
  return {.name = std::string(flag.Name()),
          .variable = {.type = abseil_type(flag), .set = set},
          .default_value = flag.DefaultValue(),
          .help = flag.Help()};
}

}  // namespace

std::string shown(const std::string& text) { return printable(text, kLongestShown); }

void Flag::set(const std::string& text) const {
  std::string reason;
  bool good = false;
  try {
    good = variable.set(text, reason);
  } catch (const c10::ValueError& error) {
    reason = error_message(error);
    TORCH_CHECK_VALUE(!reason.starts_with(name + ":"), reason);
  }
  TORCH_CHECK_VALUE(good, "--", name, "=", shown(text), ": ",
                    reason.empty() ? "not a valid value of type " + variable.type : reason);
}

std::map<std::string, Flag> with_abseil_flags(const std::vector<Flag>& own) {
  std::map<std::string, Flag> flags;
  for (const Flag& flag : own) {
    flags.emplace(flag.name, flag);
  }
  for (const auto& [name, flag] : absl::GetAllFlags()) {
    const bool is_new = flags.emplace(std::string(name), abseil_flag(*flag)).second;
    TORCH_CHECK(is_new, "--", std::string(name), " is defined twice");
  }
  return flags;
}

}  // namespace narrowcast::program
