// The folder of one run, which holds what its workers write for the launcher.
#pragma once

#include <filesystem>
#include <string>

#include <narrowcast/worker_env.h>
#include "trainer/base/files/file_descriptor.h"

namespace narrowcast::launcher {

class RunFolder {
 public:
  enum class Fate { kKept, kTemporary };

  // A new folder named after `run_id` in `log_dir`, which is made if need be, or without one in the folder for
  // temporary files that `environment` names. A temporary one goes with this object; what launchers of this user that
  // were killed left there goes now. Throws c10::ValueError if it cannot be made.
  RunFolder(const std::filesystem::path& log_dir, const std::string& run_id, Fate fate,
            const EnvironmentVariables& environment);
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;
  ~RunFolder();

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  bool temporary_ = false;
  files::FileDescriptor lock_;  // of a temporary one, for as long as this process lives
};

// A name for a run that no other run on this machine has: the time and this process's id.
std::string new_run_id();

}  // namespace narrowcast::launcher
