#include "tests/support/rank_process.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <system_error>
#include <torch/csrc/distributed/c10d/FileStore.hpp>

namespace narrowcast::testing {

StoreFile::StoreFile() : path_(::testing::TempDir() + "narrowcast_store_XXXXXX") {
  const int descriptor = ::mkstemp(path_.data());
  if (descriptor < 0) throw std::system_error(errno, std::generic_category(), "mkstemp " + path_);
  ::close(descriptor);
}

StoreFile::~StoreFile() {
  std::error_code ignored;  // The last FileStore removes the file itself.
  std::filesystem::remove(path_, ignored);
}

int run_rank(const std::string& store_path, const RankBody& body, const RankOfProcess& process) {
  try {
    at::set_num_threads(1);
    const auto store = c10::make_intrusive<c10d::FileStore>(store_path, static_cast<int>(process.world_size));
    const auto group = join_ranks(store, process.rank, process.world_size, process.options);
    body(process.rank, group);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d: %s\n", static_cast<int>(process.rank), error.what());
    return kRankFailed;
  }
  return ::testing::Test::HasFailure() ? kRankFailed : kRankPassed;
}

int exit_code_of(pid_t process) {
  int status = 0;
  while (::waitpid(process, &status, 0) < 0) {
    if (errno != EINTR) throw std::system_error(errno, std::generic_category(), "waitpid");
  }
  constexpr int kSignalBase = 128;
  return WIFSIGNALED(status) ? kSignalBase + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace narrowcast::testing
