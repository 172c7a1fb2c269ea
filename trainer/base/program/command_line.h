// Reads the command line of every program of the project.
//
// A main passes a description of the program with its flags. These flags set variables (flag.h). Abseil's flags are
// found without a description:
//
//     int main(int argc, char** argv) {
//       return narrowcast::program::run_main(description(), argc, argv, [](const CommandLine& line) { ... });
//     }
//
// Accepted: --flag=value, --flag value, --bool_flag, --nobool_flag, dashes for underscores in names, one dash for two,
// --flagfile=FILE, --help, --help=markdown, --version. The last of several values of a flag counts. Abseil's parser is
// not used, because it ends the process with other codes than ours.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/base/program/description.h"
#include "trainer/base/program/failure.h"
#include "trainer/base/program/flag.h"

namespace narrowcast::program {

// The flags of one command line, already set.
class CommandLine {
 public:
  // Sets the flags in `arguments` (without the program's name) and in their flag files. Reading ends early at --help or
  // --version: see answer(). Throws:
  //   - c10::ValueError naming flag and value for an unknown flag, a bad or missing value, a flag file that cannot be
  //     opened or is not a regular file, or an argument that Positionals::kNone forbids,
  //   - CorruptInputError for a flag file that cannot be read to its end or has more than 1 MiB.
  CommandLine(const Description& description, const std::vector<std::string>& arguments);

  // Whether the command line or a flag file set `flag`, even to its default.
  bool given(const std::string& flag) const { return given_.count(flag) != 0; }

  // With Positionals::kEndTheFlags: the first argument that is not a flag and all after it, or all after "--". Empty
  // otherwise.
  const std::vector<std::string>& rest() const { return rest_; }

  // The text to print instead of running, if --help or --version was given.
  const std::optional<std::string>& answer() const { return answer_; }

 private:
  struct Token;

  static std::string value_of(const Token& token, const std::string* next);
  bool apply(const Description& description, const Token& token, const std::string* next);
  void apply_file(const Description& description, const std::string& path);
  void set(const Flag& flag, const std::string& value);

  std::map<std::string, Flag> flags_;
  std::set<std::string> given_;
  std::vector<std::string> rest_;
  std::optional<std::string> answer_;
  int files_open_ = 0;
};

// Reads the command line and returns the result of `body`. With --help or --version it prints the text on standard
// output and returns 0. Errors are treated as in run_program.
int run_main(const Description& description, int argc, char** argv, const std::function<int(const CommandLine&)>& body,
             const FailureListener& on_failure = {});

// For "Did you mean": the name among `known` that the user most likely meant by `wanted`. That is a name that begins
// with it, else the name with the fewest single-letter edits, if they are at most a third of its letters. Empty if no
// name is that close. If several names are equally close, it returns the first in `known`.
std::string closest_name(std::string_view wanted, const std::vector<std::string>& known);

}  // namespace narrowcast::program
