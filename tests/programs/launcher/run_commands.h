// Runs narrowcast-run for the tests of this folder. Workers run shell scripts.
#pragma once

#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "tests/programs/program_paths.h"
#include "tests/programs/running_program.h"
#include "tests/support/temporary_folder.h"

namespace narrowcast::testing {

using Words = std::vector<std::string>;

inline const std::string kRun = kNarrowcastRun;

// narrowcast-run with `flags` and `ranks` workers that run `script`.
inline Words command(int ranks, const std::string& script, const Words& flags = {}) {
  Words words = {kRun, "--nproc_per_node=" + std::to_string(ranks)};
  words.insert(words.end(), flags.begin(), flags.end());
  words.insert(words.end(), {"sh", "-c", script});
  return words;
}

inline ProgramEnd run(int ranks, const std::string& script, const Words& flags = {}) {
  return run_to_end(command(ranks, script, flags));
}

// The lines of `text` that begin with `prefix`, without it.
inline Words lines_with(const std::string& prefix, const std::string& text) {
  Words lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    if (line.starts_with(prefix)) {
      lines.push_back(line.substr(prefix.size()));
    }
  }
  return lines;
}

// The ids that workers printed in lines with `label`.
inline std::vector<pid_t> pids_after(const std::string& label, const std::string& text) {
  std::vector<pid_t> pids;
  for (size_t at = text.find(label); at != std::string::npos; at = text.find(label, at + 1)) {
    pids.push_back(static_cast<pid_t>(std::stol(text.substr(at + label.size()))));
  }
  return pids;
}

// A line on standard error, exit code 2, and nothing started.
inline void expect_refused(const ProgramEnd& end, const std::string& message) {
  EXPECT_EQ(end.exit_code, 2);
  EXPECT_EQ(end.output, "");
  EXPECT_EQ(end.errors, "narrowcast-run: " + message + "\n");
}

class NarrowcastRunFixture : public ::testing::Test {
 protected:
  const TemporaryFolder folder;
};

}  // namespace narrowcast::testing
