// The flags of a program: those that its description brings, which set variables, and Abseil's.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "trainer/base/program/variable.h"

namespace narrowcast::program {

struct Flag {
  std::string name;                // with underscores
  Variable variable;               // that it sets
  std::string default_value = {};  // as --help prints it; empty: it prints none
  std::string help = {};           // sentences
  std::string values = {};     // unit and range: "seconds, at least 1"; empty: there is no more to say than the type
  std::string at_resume = {};  // of a program that resumes: what another value means then

  // Throws c10::ValueError "--NAME=TEXT: REASON" for a text that is not a value.
  void set(const std::string& text) const;
};

// An argument or a value in a message.
std::string shown(const std::string& text);

// All flags of a program by name: `own` and every flag of Abseil's that is linked into it.
std::map<std::string, Flag> with_abseil_flags(const std::vector<Flag>& own);

}  // namespace narrowcast::program
