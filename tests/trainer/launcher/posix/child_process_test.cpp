#include "trainer/launcher/posix/child_process.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>

#include <array>
#include <csignal>

#include "ops/common/file_descriptor.h"
#include "trainer/launcher/posix/process_list.h"

namespace narrowcast::launcher {
namespace {

WorkerCommand shell(const std::string& script) {
  WorkerCommand command;
  command.arguments = {"/bin/sh", "-c", script};
  command.environment = {{"PATH", "/usr/bin:/bin"}, {"GREETING", "hello"}};
  return command;
}

// Returns the standard output of a child with this script, read until all writers are gone.
std::string output_of(const WorkerCommand& command, Guard& guard) {
  Pipe pipe = make_pipe();
  const pid_t pid = start_child(command, {.output = pipe.write_end.get()}, guard);
  pipe.write_end.close();
  std::string text;
  char bytes[256];
  for (ssize_t count = 0; (count = read(pipe.read_end.get(), bytes, sizeof(bytes))) > 0;) {
    text.append(bytes, static_cast<size_t>(count));
  }
  waitpid(pid, nullptr, 0);
  return text;
}

TEST(ChildProcess, GetsItsEnvironmentAndNoInput) {
  Guard guard;
  EXPECT_EQ(output_of(shell("echo $GREETING; read line || echo no input"), guard), "hello\nno input\n");
}

TEST(ChildProcess, LeadsItsOwnGroup) {
  Guard guard;
  // Fields 1 and 5 of stat are the process's id and its group's.
  EXPECT_EQ(output_of(shell("set -- $(cat /proc/$$/stat); test $1 = $5 && echo leads"), guard), "leads\n");
}

TEST(ChildProcess, InheritsNoDescriptorsOfOurs) {
  Guard guard;
  const Pipe not_inherited = make_pipe();
  for (const int ours : {guard.announcements(), not_inherited.read_end.get(), not_inherited.write_end.get()}) {
    EXPECT_EQ(output_of(shell("test -e /proc/$$/fd/" + std::to_string(ours) + " || echo absent"), guard), "absent\n");
  }
}

TEST(ChildProcess, SaysWhyAProgramCannotBeExecuted) {
  Guard guard;
  WorkerCommand command;
  command.arguments = {"/no/such/program"};
  try {
    start_child(command, {}, guard);
    FAIL() << "started";
  } catch (const c10::ValueError& error) {
    EXPECT_EQ(std::string(error.what_without_backtrace()),
              "/no/such/program: cannot be executed: No such file or directory");
  }
}

TEST(ChildProcess, IsListedAsAChild) {
  Guard guard;
  const pid_t pid = start_child(shell("exit 0"), {}, guard);
  siginfo_t info{};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT), 0);
  bool listed = false;
  for (const ProcessEntry& child : list_children()) {
    listed = listed || (child.pid == pid && child.ended);
    EXPECT_TRUE(child.pid != guard.pid() || !child.ended);
  }
  EXPECT_TRUE(listed);
  waitpid(pid, nullptr, 0);
}

// Starts a child that ends and leaves a grandchild, which holds the writing end of a pipe. Sets `group` to their
// process group.
FileDescriptor end_held_by_grandchild(Guard& guard, pid_t& group) {
  Pipe pipe = make_pipe();
  group = start_child(shell("sleep 1000 & echo ready"), {.output = pipe.write_end.get()}, guard);
  waitpid(group, nullptr, 0);
  char ready[6];
  EXPECT_EQ(read(pipe.read_end.get(), ready, sizeof(ready)), 6);
  return std::move(pipe.read_end);
}

FileDescriptor end_held_by_grandchild(Guard& guard) {
  pid_t group = 0;
  return end_held_by_grandchild(guard, group);
}

TEST(Guard, KillsTheGroupsItHeardOf) {
  FileDescriptor held;
  {
    Guard guard;
    held = end_held_by_grandchild(guard);
  }
  char byte = 0;
  EXPECT_EQ(read(held.get(), &byte, 1), 0);  // the end: nobody holds the other side
}

TEST(Guard, SparesWhatItWasToldToForget) {
  FileDescriptor held;
  {
    Guard guard;
    held = end_held_by_grandchild(guard);
    guard.forget();
  }
  pollfd entry = {held.get(), POLLIN, 0};
  EXPECT_EQ(poll(&entry, 1, 0), 0);  // still held, though the guard is gone
  const Guard clean_up;
  for (const ProcessEntry& child : list_children()) {
    if (child.pid != clean_up.pid()) {
      kill(child.pid, SIGKILL);
      waitpid(child.pid, nullptr, 0);
    }
  }
}

TEST(Guard, SparesOneGroupThatItWasToldToForget) {
  FileDescriptor spared;
  std::array<FileDescriptor, 2> killed;
  pid_t group = 0;
  {
    Guard guard;
    killed[0] = end_held_by_grandchild(guard);
    spared = end_held_by_grandchild(guard, group);
    killed[1] = end_held_by_grandchild(guard);
    guard.forget(group);
  }
  char byte = 0;
  for (const FileDescriptor& end : killed) {
    EXPECT_EQ(read(end.get(), &byte, 1), 0);
  }
  pollfd entry = {spared.get(), POLLIN, 0};
  EXPECT_EQ(poll(&entry, 1, 0), 0);
  kill(-group, SIGKILL);
  EXPECT_EQ(read(spared.get(), &byte, 1), 0);
}

void kill_guard(const Guard& guard) {
  kill(guard.pid(), SIGKILL);
  siginfo_t info{};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(guard.pid()), &info, WEXITED | WNOWAIT), 0);
}

TEST(Guard, IsReplacedIfItDied) {
  Guard guard;
  const pid_t first = guard.pid();
  kill_guard(guard);
  EXPECT_EQ(output_of(shell("echo started"), guard), "started\n");
  EXPECT_NE(guard.pid(), first);
}

TEST(Guard, TellsItsSuccessorOfAllGroups) {
  FileDescriptor held;
  {
    Guard guard;
    held = end_held_by_grandchild(guard);
    kill_guard(guard);
    guard.revive();
  }
  char byte = 0;
  EXPECT_EQ(read(held.get(), &byte, 1), 0);  // the end: nobody holds the other side
}

TEST(Guard, HoldsNoDescriptorOfTheLauncher) {
  Pipe pipe = make_pipe();
  Guard guard;
  pipe.write_end.close();
  char byte = 0;
  EXPECT_EQ(read(pipe.read_end.get(), &byte, 1), 0);
}

// This process adopts orphans, so that the tests above can end them.
class AdoptOrphans : public ::testing::Environment {
  void SetUp() override { adopt_orphans(); }
};
[[maybe_unused]] const ::testing::Environment* const kAdopt = ::testing::AddGlobalTestEnvironment(new AdoptOrphans);

}  // namespace
}  // namespace narrowcast::launcher
