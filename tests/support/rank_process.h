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

// Runs `body` as that rank and returns what its process must exit with, kRankPassed or kRankFailed. It waits for no
// other rank then: where one died, those that live notice each other's end alone.
int run_rank(const std::string& store_path, const RankBody& body, const RankOfProcess& process);

// Waits for the end of `process`, a child of this one: its exit code, or 128 + the signal that ended it.
int exit_code_of(pid_t process);

}  // namespace narrowcast::testing
