// The flags of a program: the flags of its description, which set variables, and Abseil's.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "trainer/base/program/variable.h"

namespace narrowcast::program {

struct Flag {
  std::string name;                // with underscores
  Variable variable;               // set by the flag
  std::string default_value = {};  // as --help prints it; empty: not printed
  std::string help = {};           // sentences
  std::string values = {};         // unit and range: "seconds, at least 1"; empty: every value of the type
  std::string at_resume = {};      // whether a resumed training may have another value; may be empty

  // Throws c10::ValueError "--NAME=TEXT: REASON" for a text that is not a value.
  void set(const std::string& text) const;
};

// An argument or a value in a message.
std::string shown(const std::string& text);

// All flags of a program by name: `own` and every flag of Abseil's that is linked into it.
std::map<std::string, Flag> with_abseil_flags(const std::vector<Flag>& own);

}  // namespace narrowcast::program
