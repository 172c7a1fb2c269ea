#include "trainer/base/program/description.h"

#include <c10/util/Exception.h>

#include <map>
#include <sstream>

#include "trainer/base/program/failure.h"
#include "trainer/base/program/flag.h"

namespace narrowcast::program {
namespace {

constexpr size_t kColumns = 80;

// Every program has these flags. They are not in its description.
constexpr const char* kCommonFlags =
    "  --help\n      Shows this text; --help=markdown prints the flags as a page in Markdown.\n"
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

std::string flag_help(const Flag& flag) {
  std::string line = "  --" + flag.name + " (" + flag.variable.type;
  if (!flag.values.empty()) {
    line += ", " + flag.values;
  }
  if (!flag.default_value.empty()) {
    line += "; default: " + flag.default_value;
  }
  return line + ")\n" + wrapped(flag.help, 6);
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
      {kCheckFailed,
       "a check failed: gradients or replicas differ, the loss is not finite, or many steps were skipped"},
      {kWrongUse, "wrong use: a flag, a name, a value or a combination; also too little memory, too few open files"},
      {kPeerFailed, "another rank or the network failed, or a collective timed out"},
      {kCorruptInput, "a file or a message has invalid content"},
      {kInternalError, "an internal error: please report it"},
      {kOutputFailed, "a file could not be written, e.g. because the disk is full; earlier checkpoints stay"},
  };
}

void check_flag_groups(const Description& description) {
  const std::map<std::string, Flag> flags = with_abseil_flags(description.flags);
  std::map<std::string, int> times_listed;
  for (const FlagGroup& group : description.groups) {
    for (const std::string& flag : group.flags) {
      TORCH_CHECK(flags.contains(flag), "group ", group.title, " names --", flag, ", which does not exist");
      TORCH_CHECK(++times_listed[flag] == 1, "--", flag, " is in more than one group of the help text");
    }
  }
  for (const auto& [name, flag] : flags) {
    TORCH_CHECK(times_listed[name] == 1, "--", name, " is in no group of the help text");
  }
}

std::string help_text(const Description& description) {
  const std::map<std::string, Flag> flags = with_abseil_flags(description.flags);
  std::string text = wrapped(description.name + ": " + description.summary, 0);
  text += "\nUsage: " + description.usage + "\n";
  for (const FlagGroup& group : description.groups) {
    text += "\n" + group.title + ":\n";
    for (const std::string& flag : group.flags) {
      text += flag_help(flags.at(flag));
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
