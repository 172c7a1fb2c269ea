// The same short training under any launcher.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "tests/programs/train_commands.h"
#include "tests/support/temporary_folder.h"

namespace narrowcast::testing {

// Trains a small model on real text with two ranks of one thread each; what a launcher makes of it must be, bit for
// bit, what narrowcast-run makes of it.
class LaunchedTraining : public ::testing::Test {
 protected:
  // The flags of the training, which writes its model into folder/name.
  Words flags_into(const std::string& name) const;

  // Runs `launcher`, words that end before the trainer's own, with the training; `environment` changes that of a
  // process that no launcher started. Its model must be narrowcast-run's.
  void expect_parameters_of_narrowcast_run(const Words& launcher,
                                           const std::map<std::string, std::string>& environment = {});

  // Runs `command` the same way, whatever comes of it.
  static ProgramEnd launch(const Words& command, const std::map<std::string, std::string>& environment = {});

  // Fails unless folder/name holds narrowcast-run's model.
  void compare_parameters(const std::string& name);

  const TemporaryFolder folder;
};

// Whether there is a program of that name in PATH.
bool is_installed(const std::string& program);

}  // namespace narrowcast::testing
