// narrowcast-train in the process of the test, alone and without a launcher.
#pragma once

#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "trainer/base/program/command_line.h"
#include "trainer/train/flags/train_program.h"
#include "trainer/train/flags/worker_flags.h"

namespace narrowcast::testing {

using Words = std::vector<std::string>;

inline Words operator+(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

struct Ending {
  int code;
  std::string output;
  std::string errors;
};

// The ending of narrowcast-train with these flags.
inline Ending train(Words words) {
  options::Arguments arguments;
  std::ostringstream output;
  const auto body = [&](const program::CommandLine& line) {
    return run_train({line, arguments}, {.env = read_worker_env(arguments.place),
                                         .session = {},
                                         .results = output,
                                         .progress = output,
                                         .progress_is_terminal = false});
  };
  words.insert(words.begin(), "narrowcast-train");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  const int code = program::run_main(train_description(arguments), static_cast<int>(argv.size()), argv.data(), body);
  output << ::testing::internal::GetCapturedStdout();
  return {code, output.str(), ::testing::internal::GetCapturedStderr()};
}

}  // namespace narrowcast::testing
