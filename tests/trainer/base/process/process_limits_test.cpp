#include "trainer/base/process/process_limits.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstdlib>

#include "tests/support/open_file_limit.h"

namespace narrowcast::program {
namespace {

// Ends a process with a limit of 100 open files, in which nothing was set up before.
void set_up_and_undo() {
  std::signal(SIGXFSZ, SIG_DFL);
  const testing::OpenFileLimit limit(100);
  set_up_process();
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  const bool is_set_up = files.rlim_cur == files.rlim_max && std::signal(SIGXFSZ, SIG_IGN) == SIG_IGN;
  set_up_process();  // Only the state before the first call is restored.
  undo_process_setup();
  std::exit(is_set_up && network::open_file_limit() == 100 && std::signal(SIGXFSZ, SIG_DFL) == SIG_DFL ? 0 : 1);
}

TEST(ProcessSetup, RaisesTheLimitIgnoresTheSignalAndUndoesBoth) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // Restarts this program.
  EXPECT_EXIT(set_up_and_undo(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace narrowcast::program
