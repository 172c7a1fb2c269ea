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

}  // namespace
}  // namespace narrowcast::launcher
