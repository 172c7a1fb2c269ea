#include "tests/programs/other_launchers/launched_training.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <sstream>

namespace narrowcast::testing {

Words LaunchedTraining::flags_into(const std::string& name) const {
  return small_gpt() + Words{"--steps=12", "--hook=int8", "--node_size=1", "--output_dir=" + folder / name};
}

ProgramEnd LaunchedTraining::launch(const Words& command, const std::map<std::string, std::string>& environment) {
  std::map<std::string, std::string> changes = alone();
  for (const auto& [name, value] : environment) {
    changes[name] = value;
  }
  return run_to_end(command, changes);
}

void LaunchedTraining::expect_parameters_of_narrowcast_run(const Words& launcher,
                                                           const std::map<std::string, std::string>& environment) {
  const ProgramEnd end = launch(launcher + Words{kNarrowcastTrain} + flags_into("theirs"), environment);
  ASSERT_EQ(end.exit_code, 0) << end.errors << end.output;
  compare_parameters("theirs");
}

void LaunchedTraining::compare_parameters(const std::string& name) {
  const ProgramEnd ours = train_on(2, flags_into("ours"));
  ASSERT_EQ(ours.exit_code, 0) << ours.errors;
  const std::string expected = files::read_file(folder / "ours/model.safetensors");
  EXPECT_GT(expected.size(), 1000u);
  EXPECT_TRUE(files::read_file(folder / (name + "/model.safetensors")) == expected) << "parameters differ";
}

bool is_installed(const std::string& program) {
  const char* const path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "" : path);
  for (std::string each; std::getline(folders, each, ':');) {
    if (::access((std::filesystem::path(each) / program).c_str(), X_OK) == 0) {
      return true;
    }
  }
  return false;
}

}  // namespace narrowcast::testing
