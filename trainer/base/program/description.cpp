#include "trainer/base/program/command_line.h"

#include <absl/flags/commandlineflag.h>
#include <absl/flags/reflection.h>
#include <absl/time/time.h>
#include <c10/util/Exception.h>

#include <cstdint>
#include <map>
#include <sstream>

#include "trainer/base/program/failure.h"
#include "trainer/base/program/path_list.h"

namespace narrowcast::program {
namespace {

constexpr size_t kColumns = 80;

// Every program has these; they are not Abseil flags, because Abseil's own exit with code 1.
constexpr const char* kCommonFlags =
    "  --help\n      Shows this text.\n"
    "  --version\n      Shows the program's version.\n"
    "  --flagfile=FILE\n      Reads flags from FILE, one --flag=value on each line; # begins a comment.\n";

// `text` in lines of at most kColumns, each indented by `indent` spaces.
std::string wrapped(const std::string& text, size_t indent) {
  std::istringstream words(text);
  std::string result;
  std::string line;
  for (std::string word; words >> word;) {
    if (!line.empty() && indent + line.size() + 1 + word.size() > kColumns) {
      result += std::string(indent, ' ') + line + "\n";
      line.clear();
    }
    line += (line.empty() ? "" : " ") + word;
  }
  return result + std::string(indent, ' ') + line + "\n";
}

std::string flag_help(const std::string& name) {
  const absl::CommandLineFlag& flag = *absl::FindCommandLineFlag(name);
  const std::string type = flag_type(name);
  const std::string value = flag.DefaultValue();
  std::string line = "  --" + name + " (" + type;
  if (!value.empty()) {
    line += "; default: " + value;
  }
  return line + ")\n" + wrapped(flag.Help(), 6);
}

std::string exit_codes_help(const std::vector<ExitMeaning>& codes) {
  std::string result;
  for (const ExitMeaning& exit : codes) {
    const std::string code = std::to_string(exit.code);
    const std::string text = wrapped(exit.meaning, 6);
    result += "  " + code + std::string(6 - 2 - code.size(), ' ') + text.substr(6);
  }
  return result;
}

}  // namespace

std::vector<ExitMeaning> common_exit_codes() {
  return {
      {kSuccess, "success"},
      {kCheckFailed, "the program ran and its answer is no"},
      {kWrongUse, "wrong use: a flag, a name, a value or a combination of them"},
      {kPeerFailed, "another rank or the network failed, or a collective timed out"},
      {kCorruptInput, "a file or a message does not hold what it must"},
      {kInternalError, "an internal error: please report it"},
      {kOutputFailed, "a checkpoint could not be written, e.g. because the disk is full"},
  };
}

std::string flag_type(const std::string& name) {
  const absl::CommandLineFlag* flag = absl::FindCommandLineFlag(name);
  if (flag == nullptr) {
    return "";
  }
  if (flag->IsOfType<bool>()) {
    return "yes/no";
  }
  if (flag->IsOfType<int32_t>() || flag->IsOfType<int64_t>() || flag->IsOfType<uint32_t>() ||
      flag->IsOfType<uint64_t>()) {
    return "integer";
  }
  if (flag->IsOfType<double>() || flag->IsOfType<float>()) {
    return "number";
  }
  if (flag->IsOfType<std::string>()) {
    return "text";
  }
  if (flag->IsOfType<std::vector<std::string>>() || flag->IsOfType<PathList>()) {
    return "list";
  }
  return flag->IsOfType<absl::Duration>() ? "duration" : "value";
}

void check_flag_groups(const Description& description) {
  std::map<std::string, int> shown;
  for (const FlagGroup& group : description.groups) {
    for (const std::string& flag : group.flags) {
      TORCH_CHECK(absl::FindCommandLineFlag(flag) != nullptr, "group ", group.title, " names --", flag,
                  ", which does not exist");
      TORCH_CHECK(++shown[flag] == 1, "--", flag, " is in more than one group of the help text");
    }
  }
  for (const auto& [name, flag] : absl::GetAllFlags()) {
    TORCH_CHECK(shown.count(std::string(name)) == 1, "--", std::string(name), " is in no group of the help text");
  }
}

std::string help_text(const Description& description) {
  std::string text = wrapped(description.name + ": " + description.summary, 0);
  text += "\nUsage: " + description.usage + "\n";
  for (const FlagGroup& group : description.groups) {
    text += "\n" + group.title + ":\n";
    for (const std::string& flag : group.flags) {
      text += flag_help(flag);
    }
  }
  text += std::string("\nEvery program:\n") + kCommonFlags;
  text += description.examples.empty() ? "" : "\nExamples:\n";
  for (const Example& example : description.examples) {
    text += "  # " + example.purpose + "\n  " + example.command + "\n";
  }
  text += "\nExit codes:\n" + exit_codes_help(description.exit_codes);
  return description.exit_note.empty() ? text : text + wrapped(description.exit_note, 2);
}

}  // namespace narrowcast::program
