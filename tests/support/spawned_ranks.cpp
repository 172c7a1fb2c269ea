#include "tests/support/spawned_ranks.h"

#include <gtest/gtest.h>
#include <spawn.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <system_error>

#include "tests/support/rank_process.h"

namespace narrowcast::testing {
namespace {

using Variables = std::map<std::string, std::string>;

// Environment variables that mark a process as a rank.
constexpr const char* kRank = "NARROWCAST_TEST_RANK";
constexpr const char* kStore = "NARROWCAST_TEST_STORE";
constexpr int kPassedAsRank = 77;  // A process that never reached spawn_ranks exits with 0.

[[noreturn]] void be_rank(int64_t rank, int64_t world_size, const RankBody& body, const RanksOptions& options) {
  const int code = run_rank(std::getenv(kStore), body, {rank, world_size, options});
  std::fflush(nullptr);
  ::_exit(code == kRankPassed ? kPassedAsRank : code);
}

// This process's environment, changed by `variables`. GoogleTest's variables are removed: they may request a report or
// a shard.
std::vector<std::string> environment_with(const Variables& variables) {
  Variables all = variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (text.rfind("GTEST_", 0) != 0) all.emplace(text.substr(0, text.find('=')), text.substr(text.find('=') + 1));
  }
  std::vector<std::string> assignments;
  for (const auto& [name, value] : all) assignments.push_back(name + "=" + value);
  return assignments;
}

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

pid_t start_this_test(const Variables& variables) {
  const ::testing::TestInfo& test = *::testing::UnitTest::GetInstance()->current_test_info();
  std::vector<std::string> words = {"rank", std::string("--gtest_filter=") + test.test_suite_name() + "." + test.name(),
                                    "--gtest_brief=1"};
  std::vector<std::string> assignments = environment_with(variables);
  pid_t process = 0;
  const int error = ::posix_spawn(&process, "/proc/self/exe", nullptr, nullptr, pointers_to(words).data(),
                                  pointers_to(assignments).data());
  if (error != 0) throw std::system_error(error, std::generic_category(), "posix_spawn");
  return process;
}

int as_code_of_rank(int code) {
  if (code == kPassedAsRank) return kRankPassed;
  return code == 0 ? kRankFailed : code;
}

}  // namespace

std::vector<int> spawn_ranks(int64_t world_size, const RankBody& body, const RanksOptions& options,
                             const std::function<Variables(int64_t rank)>& variables) {
  if (const char* const rank = std::getenv(kRank)) be_rank(std::stoll(rank), world_size, body, options);
  const StoreFile file;
  std::fflush(nullptr);
  std::vector<pid_t> processes;
  for (int64_t rank = 0; rank < world_size; ++rank) {
    Variables own = variables ? variables(rank) : Variables();
    own[kRank] = std::to_string(rank);
    own[kStore] = file.path();
    processes.push_back(start_this_test(own));
  }
  std::vector<int> exit_codes;
  for (const pid_t process : processes) exit_codes.push_back(as_code_of_rank(exit_code_of(process)));
  return exit_codes;
}

}  // namespace narrowcast::testing
