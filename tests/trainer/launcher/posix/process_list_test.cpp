#include "trainer/launcher/posix/process_list.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>

namespace narrowcast::launcher {
namespace {

TEST(ProcessList, ContainsThisProcess) {
  const std::vector<ProcessEntry> processes = list_processes();
  const auto own = std::ranges::find(processes, getpid(), &ProcessEntry::pid);
  ASSERT_NE(own, processes.end());
  EXPECT_EQ(own->parent, getppid());
  EXPECT_EQ(own->group, getpgrp());
  EXPECT_FALSE(own->ended);
}

TEST(ProcessList, TellsAChildsVariables) {
  const pid_t child = fork();
  if (child == 0) {
    execle("/bin/sh", "sh", "-c", "kill -STOP $$", nullptr,
           std::array{const_cast<char*>("NAME=value"), static_cast<char*>(nullptr)}.data());
    _exit(127);
  }
  siginfo_t info{};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &info, WSTOPPED), 0);
  const std::vector<ProcessEntry> children = list_children();
  EXPECT_NE(std::ranges::find(children, child, &ProcessEntry::pid), children.end());
  EXPECT_EQ(was_started_with(child, "NAME=value"), true);
  EXPECT_EQ(was_started_with(child, "NAME=valu"), false);
  EXPECT_EQ(was_started_with(child, ""), false);
  kill(child, SIGKILL);
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
  EXPECT_EQ(was_started_with(child, "NAME=value"), std::nullopt) << "it has ended";
  waitpid(child, nullptr, 0);
  EXPECT_EQ(was_started_with(child, "NAME=value"), std::nullopt) << "it is gone";
}

// A child in another process group, which runs `script` and has printed a line.
class GroupTest : public ::testing::Test {
 protected:
  pid_t start(const char* script) {
    std::array<int, 2> ends{};
    EXPECT_EQ(pipe(ends.data()), 0);
    const pid_t child = fork();
    if (child == 0) {
      setpgid(0, 0);
      dup2(ends[1], STDOUT_FILENO);
      execl("/bin/sh", "sh", "-c", script, nullptr);
      _exit(127);
    }
    close(ends[1]);
    char byte = 0;
    EXPECT_EQ(read(ends[0], &byte, 1), 1);
    close(ends[0]);
    children_.push_back(child);
    return child;
  }
  ~GroupTest() override {
    for (const pid_t child : children_) {
      kill(-child, SIGKILL);
      waitpid(child, nullptr, 0);
    }
  }

 private:
  std::vector<pid_t> children_;
};

TEST_F(GroupTest, HandlesASignalIfAProcessHasAHandlerAndRuns) {
  EXPECT_FALSE(group_handles(start("echo; while true; do sleep 1; done"), SIGQUIT));
  EXPECT_FALSE(group_handles(start("trap '' QUIT; echo; while true; do sleep 1; done"), SIGQUIT)) << "it is ignored";
  const pid_t child = start("trap 'exit 1' QUIT; echo; while true; do sleep 1; done");
  EXPECT_TRUE(group_handles(child, SIGQUIT));
  EXPECT_FALSE(group_handles(child, SIGUSR1));
  kill(child, SIGSTOP);
  siginfo_t info{};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &info, WSTOPPED), 0);
  EXPECT_FALSE(group_handles(child, SIGQUIT));
  EXPECT_TRUE(group_handles(start("sh -c \"trap 'exit 1' QUIT; echo; while true; do sleep 1; done\"; true"), SIGQUIT))
      << "a child of the child";
}

}  // namespace
}  // namespace narrowcast::launcher
