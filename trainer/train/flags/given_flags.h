// The flags that a command line of narrowcast-train gives, and errors for flags that have no effect.
#pragma once

#include <string>
#include <vector>

#include "trainer/base/program/command_line.h"
#include "trainer/train/options/arguments.h"

namespace narrowcast {

// A command line that has been read.
struct Given {
  const program::CommandLine& line;     // for which flags were given
  const options::Arguments& arguments;  // the flags' values

  bool has(const std::string& flag) const { return line.given(flag); }
};

// Throws c10::ValueError "--FLAG: has no effect REASON" if one of `flags` was given.
void refuse(const Given& given, const std::vector<std::string>& flags, const std::string& reason);

// The same for every flag of the program except `used` and the flags of the place in the job.
void refuse_all_but(const Given& given, const std::vector<std::string>& used, const std::string& reason);

}  // namespace narrowcast
