#include "trainer/base/program/command_line.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <numeric>
#include <sstream>

#include <narrowcast/errors.h>
#include "ops/common/text.h"
#include "trainer/base/files/open_file.h"
#include "trainer/base/program/failure.h"
#include "trainer/base/program/reference_page.h"

namespace narrowcast::program {

// The parts of an argument that begins with a dash.
struct CommandLine::Token {
  std::string written;               // as the user wrote the name, e.g. "--nproc-per-node"
  std::string name;                  // with underscores, e.g. "nproc_per_node"
  std::optional<std::string> value;  // the text after "="

  explicit Token(const std::string& argument) : written(argument.substr(0, argument.find('='))), name(written) {
    if (written.size() < argument.size()) {
      value = argument.substr(written.size() + 1);
    }
    name.erase(0, name.starts_with("--") ? 2 : 1);
    std::replace(name.begin(), name.end(), '-', '_');
  }
};

namespace {

// The Levenshtein distance, computed row by row.
size_t edits_between(std::string_view from, std::string_view to) {
  std::vector<size_t> row(to.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= from.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= to.size(); ++j) {
      const size_t replaced = diagonal + (from[i - 1] == to[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

constexpr int kMostNestedFiles = 8;
constexpr int64_t kLargestFile = int64_t{1} << 20;  // bytes

using Flags = std::map<std::string, Flag>;

// Null if there is no such flag.
const Flag* find_flag(const Flags& flags, const std::string& name) {
  const auto found = flags.find(name);
  return found == flags.end() ? nullptr : &found->second;
}

bool is_switch(const Flag& flag) { return flag.variable.type == type_name<bool>(); }

const Flag* find_switch(const Flags& flags, const std::string& name) {
  const Flag* flag = find_flag(flags, name);
  return flag != nullptr && is_switch(*flag) ? flag : nullptr;
}

// The flag that --noNAME or --no_NAME turns off, if there is one.
const Flag* find_negated_flag(const Flags& flags, const std::string& name) {
  if (!name.starts_with("no")) {
    return nullptr;
  }
  const Flag* flag = find_switch(flags, name.substr(2));
  return flag == nullptr && name.starts_with("no_") ? find_switch(flags, name.substr(3)) : flag;
}

std::string suggestion(const Flags& flags, const std::string& name) {
  std::vector<std::string> known = {"help", "version", "flagfile"};
  for (const auto& entry : flags) {
    known.push_back(entry.first);
  }
  std::sort(known.begin(), known.end());
  const std::string closest = closest_name(name, known);
  return closest.empty() ? " (--help lists the flags)" : "; did you mean --" + closest + "?";
}

// A line of a flag file without the blanks around it; empty for a comment.
std::string flag_file_line(const std::string& line) {
  const size_t begin = line.find_first_not_of(" \t\r");
  if (begin == std::string::npos || line[begin] == '#') {
    return "";
  }
  return line.substr(begin, line.find_last_not_of(" \t\r") - begin + 1);
}

std::string text_of_flag_file(const std::string& path) {
  try {
    return files::read_file(path, {.most_bytes = kLargestFile});
  } catch (const c10::ValueError& error) {
    TORCH_CHECK_VALUE(false, "--flagfile=", error.what_without_backtrace());
  } catch (const CorruptInputError& error) {
    NARROWCAST_CHECK_INPUT(false, "--flagfile=", error.what_without_backtrace());
  }
}

bool is_flag(const std::string& argument) { return argument.size() > 1 && argument[0] == '-' && argument != "--"; }

}  // namespace

std::string closest_name(std::string_view wanted, const std::vector<std::string>& known) {
  std::string closest;
  size_t fewest = SIZE_MAX;
  for (const std::string& name : known) {
    const bool begins = wanted.size() >= 3 && name.starts_with(wanted);
    const size_t edits = begins ? 0 : edits_between(wanted, name);
    if (edits < fewest && (begins || 3 * edits <= name.size())) {
      closest = name;
      fewest = edits;
    }
  }
  return closest;
}

// The value of a flag that must have one.
std::string CommandLine::value_of(const Token& token, const std::string* next) {
  TORCH_CHECK_VALUE(token.value || (next != nullptr && !next->starts_with("--")), shown(token.written),
                    " needs a value: write ", shown(token.written), "=VALUE");
  return token.value ? *token.value : *next;
}

CommandLine::CommandLine(const Description& description, const std::vector<std::string>& arguments)
    : flags_(with_abseil_flags(description.flags)) {
  check_flag_groups(description);
  size_t next = 0;
  while (next < arguments.size() && is_flag(arguments[next]) && !answer_) {
    const Token token(arguments[next++]);
    next += apply(description, token, next < arguments.size() ? &arguments[next] : nullptr) ? 1 : 0;
  }
  if (answer_) {
    return;
  }
  next += next < arguments.size() && arguments[next] == "--" ? 1 : 0;
  rest_.assign(arguments.begin() + static_cast<std::ptrdiff_t>(next), arguments.end());
  TORCH_CHECK_VALUE(rest_.empty() || description.positionals == Positionals::kEndTheFlags, "unexpected argument \"",
                    shown(rest_.front()), "\": flags are written --flag=value (--help lists them)");
}

// Applies one flag. `next` is the argument after it, if any. Returns whether `next` was its value.
bool CommandLine::apply(const Description& description, const Token& token, const std::string* next) {
  if (token.name == "help" || token.name == "h") {
    answer_ = token.value == "markdown" ? reference_page(description) : help_text(description);
    return false;
  }
  if (token.name == "version") {
    answer_ = description.name + " " + description.version + "\n";
    return false;
  }
  if (token.name == "flagfile") {
    apply_file(description, value_of(token, next));
    return !token.value;
  }
  if (const Flag* flag = find_flag(flags_, token.name)) {
    set(*flag, is_switch(*flag) ? token.value.value_or("true") : value_of(token, next));
    return !is_switch(*flag) && !token.value;
  }
  const Flag* negated = token.value ? nullptr : find_negated_flag(flags_, token.name);
  TORCH_CHECK_VALUE(negated != nullptr, "unknown flag ", shown(token.written), suggestion(flags_, token.name));
  set(*negated, "false");
  return false;
}

void CommandLine::set(const Flag& flag, const std::string& value) {
  flag.set(value);
  given_.insert(flag.name);
}

void CommandLine::apply_file(const Description& description, const std::string& path) {
  TORCH_CHECK_VALUE(files_open_ < kMostNestedFiles, "--flagfile=", path, ": flag files name each other more than ",
                    kMostNestedFiles, " deep");
  std::istringstream file(text_of_flag_file(path));
  ++files_open_;
  std::string line;
  for (int64_t number = 1; std::getline(file, line) && !answer_; ++number) {
    const std::string argument = flag_file_line(line);
    try {
      TORCH_CHECK_VALUE(argument.empty() || is_flag(argument), "\"", shown(argument), "\" is not a flag");
      if (!argument.empty()) {
        apply(description, Token(argument), nullptr);
      }
    } catch (const c10::ValueError& error) {
      TORCH_CHECK_VALUE(false, path, ":", number, ": ", error.what_without_backtrace());
    }
  }
  --files_open_;
}

int run_main(const Description& description, int argc, char** argv, const std::function<int(const CommandLine&)>& body,
             const FailureListener& on_failure) {
  const auto run = [&] {
    const CommandLine line(description, std::vector<std::string>(argv + 1, argv + argc));
    if (line.answer()) {
      std::cout << *line.answer() << std::flush;
      return int{kSuccess};
    }
    return body(line);
  };
  return run_program(description.name, run, on_failure);
}

}  // namespace narrowcast::program
