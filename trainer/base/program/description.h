// The description of a program and its flags, and the text of --help that follows from it.
#pragma once

#include <string>
#include <vector>

#include "trainer/base/program/flag.h"

namespace narrowcast::program {

// Flags that --help shows together, in this order. Names have underscores.
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

// How a program treats arguments that are not flags.
enum class Positionals {
  kNone,         // the first one is an error
  kEndTheFlags,  // the first one ends the flags: the program gets it and all that follow, unchanged
};

struct Description {
  std::string name;              // as users type it, e.g. "narrowcast-train"
  std::string version;           // e.g. "0.1.0"
  std::string summary;           // one sentence, without the program's name
  std::string usage;             // one line, e.g. "narrowcast-train [flags]"
  std::vector<Flag> flags = {};  // besides Abseil's
  std::vector<FlagGroup> groups;
  std::vector<Example> examples;
  std::vector<ExitMeaning> exit_codes;
  std::string exit_note;  // text after the exit codes; may be empty
  Positionals positionals = Positionals::kNone;
};

// The codes of failure.h that all programs share, in ascending order.
std::vector<ExitMeaning> common_exit_codes();

// Throws c10::Error unless every flag linked into the program is in exactly one group and every flag of a group exists.
// A flag that --help hides is a bug.
void check_flag_groups(const Description& description);

// The text of --help: usage, flags by group with type and default, examples and exit codes. Lines have at most 80
// columns, unless a single word is longer.
std::string help_text(const Description& description);

}  // namespace narrowcast::program
