// The same short training under any launcher.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "tests/programs/train_commands.h"
#include "tests/support/temporary_folder.h"

namespace narrowcast::testing {

// Trains a small model on real text with two ranks of one thread each. The result under any launcher must equal the
// result under narrowcast-run, bit for bit.
class LaunchedTraining : public ::testing::Test {
 protected:
  // The flags of the training, which writes its model to folder/name.
  Words flags_into(const std::string& name) const;

  // Runs the training under `launcher`, the words before the trainer's command. `environment` changes the environment
  // of a process without a launcher. The model must be narrowcast-run's.
  void expect_parameters_of_narrowcast_run(const Words& launcher,
                                           const std::map<std::string, std::string>& environment = {});

  // Runs `command` the same way, with any result.
  static ProgramEnd launch(const Words& command, const std::map<std::string, std::string>& environment = {});

  // Fails unless folder/name contains narrowcast-run's model.
  void compare_parameters(const std::string& name);

  const TemporaryFolder folder;
};

// Whether there is a program of that name in PATH.
bool is_installed(const std::string& program);

}  // namespace narrowcast::testing
