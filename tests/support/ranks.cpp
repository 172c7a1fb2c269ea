#include "tests/support/ranks.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <exception>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "ops/common/error_message.h"
#include "tests/support/gloo_group.h"
#include "tests/support/rank_process.h"

namespace narrowcast::testing {
namespace {

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

// Keeps the exception that was thrown first.
class FirstException {
 public:
  void capture(int64_t rank, const std::exception_ptr& exception) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!first_) first_ = exception;
    messages_ += "rank " + std::to_string(rank) + " threw: " + message_of(exception) + "\n";
  }
  void rethrow() const {
    if (!first_) return;
    std::fputs(messages_.c_str(), stderr);
    std::rethrow_exception(first_);
  }

 private:
  static std::string message_of(const std::exception_ptr& exception) {
    try {
      std::rethrow_exception(exception);
    } catch (const std::exception& error) {
      return narrowcast::error_message(error);
    } catch (...) {
      return "what is no std::exception";
    }
  }

  std::mutex mutex_;
  std::string messages_;  // Messages of all exceptions, in order of time.
  std::exception_ptr first_;
};

// Destroys all groups at once: Gloo waits up to 10 ms for each connection of a group.
void drop_all(std::vector<Group> groups) {
  std::vector<std::thread> threads;
  for (Group& group : groups) {
    threads.emplace_back([&group] { group.reset(); });
  }
  for (auto& thread : threads) thread.join();
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
        groups[rank] = join_ranks(store, rank, world_size, options);
        body(rank, groups[rank]);
      } catch (...) {
        first_exception.capture(rank, std::current_exception());
        groups[rank].reset();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  drop_all(std::move(groups));
  first_exception.rethrow();
}

void wait_for_ranks(const Group& group) { group->getBackend(c10::DeviceType::CPU)->barrier()->wait(); }

namespace {

constexpr std::chrono::milliseconds kLeastToJoin = std::chrono::seconds(10);

}  // namespace

Group join_ranks(const c10::intrusive_ptr<c10d::Store>& store, int64_t rank, int64_t world_size,
                 const RanksOptions& options) {
  // Gloo keeps the limit of messages between two ranks for good, and uses it for joining as well.
  Group group = make_gloo_group(store, {rank, world_size, std::max(options.timeout, kLeastToJoin)});
  wait_for_ranks(group);
  set_timeout(group, options.timeout);
  return group;
}

void set_timeout(const Group& group, std::chrono::milliseconds timeout) {
  group->getBackend(c10::DeviceType::CPU)->setTimeout(timeout);
}

std::vector<int> fork_ranks(int64_t world_size, const RankBody& body, const RanksOptions& options) {
  const StoreFile file;
  std::vector<pid_t> processes;
  std::fflush(nullptr);  // Otherwise children print again what was buffered before the fork.
  for (int64_t rank = 0; rank < world_size; ++rank) {
    const pid_t process = ::fork();
    if (process < 0) throw std::system_error(errno, std::generic_category(), "fork");
    if (process == 0) {
      const int code = run_rank(file.path(), body, {rank, world_size, options});
      std::fflush(nullptr);
      ::_exit(code);  // exit() would destroy static objects that belong to the parent.
    }
    processes.push_back(process);
  }
  std::vector<int> exit_codes;
  for (const pid_t process : processes) exit_codes.push_back(exit_code_of(process));
  return exit_codes;
}

}  // namespace narrowcast::testing
