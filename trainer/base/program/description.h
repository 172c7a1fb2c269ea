// What a program says about itself: the source of its --help.
#pragma once

#include <string>
#include <vector>

namespace narrowcast::program {

// Flags that --help shows together, in this order. Names are written as in ABSL_FLAG.
struct FlagGroup {
  std::string title;
  std::vector<std::string> flags;
};

struct Example {
  std::string purpose;  // one phrase: what the command does
  std::string command;
};

struct ExitMeaning {
  int code = 0;
  std::string meaning;
};

// What a program does with arguments that are not flags.
enum class Positionals {
  kNone,         // the first one is an error
  kEndTheFlags,  // the first one ends the flags: it and all that follow are kept, untouched, for the program
};

struct Description {
  std::string name;     // as users type it, e.g. "narrowcast-train"
  std::string version;  // e.g. "0.1.0"
  std::string summary;  // one sentence, without the program's name
  std::string usage;    // one line, e.g. "narrowcast-train [flags]"
  std::vector<FlagGroup> groups;
  std::vector<Example> examples;
  std::vector<ExitMeaning> exit_codes;
  std::string exit_note;  // what follows the exit codes, if there is more to say
  Positionals positionals = Positionals::kNone;
};

// The codes of failure.h that all programs share, in ascending order.
std::vector<ExitMeaning> common_exit_codes();

// Throws c10::Error unless every flag linked into the program is in exactly one
// group and every flag of a group exists: a flag that --help hides is a bug.
void check_flag_groups(const Description& description);

// The text of --help: usage, flags by group with type and default, examples and
// exit codes, in lines of at most 80 columns where words allow.
std::string help_text(const Description& description);

// What values a flag takes, in a word for users: "yes/no", "integer", "number",
// "text", "list", "duration", or "value" for other types. Empty if there is no such flag.
std::string flag_type(const std::string& flag);

}  // namespace narrowcast::program
