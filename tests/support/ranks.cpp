#include "tests/support/ranks.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "tests/support/gloo_group.h"

namespace narrowcast::testing {
namespace {

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

// Keeps the exception that was thrown first.
class FirstException {
 public:
  void capture() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!first_) first_ = std::current_exception();
  }
  void rethrow() const {
    if (first_) std::rethrow_exception(first_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr first_;
};

// A fresh file that the ranks' FileStores share; removed with this object.
class StoreFile {
 public:
  StoreFile() : path_(::testing::TempDir() + "narrowcast_store_XXXXXX") {
    const int descriptor = ::mkstemp(path_.data());
    if (descriptor < 0) throw std::system_error(errno, std::generic_category(), "mkstemp " + path_);
    ::close(descriptor);
  }
  StoreFile(const StoreFile&) = delete;
  StoreFile& operator=(const StoreFile&) = delete;
  ~StoreFile() {
    std::error_code ignored;  // A FileStore that goes last removes the file itself.
    std::filesystem::remove(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// What a forked rank exits with.
int run_forked_rank(const std::string& store_path, const RankBody& body, const GlooGroupOptions& options) {
  try {
    at::set_num_threads(1);
    const auto store = c10::make_intrusive<c10d::FileStore>(store_path, static_cast<int>(options.world_size));
    body(options.rank, make_gloo_group(store, options));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d: %s\n", static_cast<int>(options.rank), error.what());
    return kRankFailed;
  }
  return ::testing::Test::HasFailure() ? kRankFailed : kRankPassed;
}

int wait_for(pid_t process) {
  int status = 0;
  while (::waitpid(process, &status, 0) < 0) {
    if (errno != EINTR) throw std::system_error(errno, std::generic_category(), "waitpid");
  }
  constexpr int kSignalBase = 128;
  return WIFSIGNALED(status) ? kSignalBase + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace

void run_ranks(int64_t world_size, const RankBody& body, const RanksOptions& options) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<Group> groups(world_size);
  std::vector<std::thread> threads;
  FirstException first_exception;
  for (int64_t rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        groups[rank] = make_gloo_group(store, {rank, world_size, options.timeout});
        body(rank, groups[rank]);
      } catch (...) {
        first_exception.capture();
        groups[rank].reset();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  first_exception.rethrow();
}

void wait_for_ranks(const Group& group) { group->getBackend(c10::DeviceType::CPU)->barrier()->wait(); }

std::vector<int> fork_ranks(int64_t world_size, const RankBody& body, const RanksOptions& options) {
  const StoreFile file;
  std::vector<pid_t> processes;
  std::fflush(nullptr);  // Or children print what was buffered before the fork once more.
  for (int64_t rank = 0; rank < world_size; ++rank) {
    const pid_t process = ::fork();
    if (process < 0) throw std::system_error(errno, std::generic_category(), "fork");
    if (process == 0) {
      std::signal(SIGPIPE, SIG_IGN);  // As init_process_group does: a dead peer is an error, not this rank's end.
      const int code = run_forked_rank(file.path(), body, {rank, world_size, options.timeout});
      std::fflush(nullptr);
      ::_exit(code);  // Not exit: the static objects belong to the parent.
    }
    processes.push_back(process);
  }
  std::vector<int> exit_codes;
  for (const pid_t process : processes) exit_codes.push_back(wait_for(process));
  return exit_codes;
}

}  // namespace narrowcast::testing
