// A rank that is a process, however it was started.
#pragma once

#include <sys/types.h>

#include <string>

#include "tests/support/ranks.h"

namespace narrowcast::testing {

// A fresh file that the ranks' FileStores share; removed with this object.
class StoreFile {
 public:
  StoreFile();
  ~StoreFile();
  StoreFile(const StoreFile&) = delete;
  StoreFile& operator=(const StoreFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

struct RankOfProcess {
  int64_t rank = 0;
  int64_t world_size = 1;
  RanksOptions options = {};
};

// Runs `body` as this rank and returns the exit code for its process, kRankPassed or kRankFailed. It does not wait for
// other ranks at the end, so that where one died the survivors notice only each other's end.
int run_rank(const std::string& store_path, const RankBody& body, const RankOfProcess& process);

// Waits for the end of the child process `process`. Returns its exit code, or 128 + the signal that ended it.
int exit_code_of(pid_t process);

}  // namespace narrowcast::testing
