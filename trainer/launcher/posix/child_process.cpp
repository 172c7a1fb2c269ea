#include "trainer/launcher/posix/child_process.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <variant>

#include "ops/common/file_descriptor.h"
#include "trainer/base/process/process_limits.h"
#include "trainer/launcher/posix/machine.h"

namespace narrowcast::launcher {
namespace {

// A list of strings as execve needs it.
class CStrings {
 public:
  explicit CStrings(std::vector<std::string> texts) : texts_(std::move(texts)) {
    for (std::string& text : texts_) {
      pointers_.push_back(text.data());
    }
    pointers_.push_back(nullptr);
  }
  char** get() { return pointers_.data(); }

 private:
  std::vector<std::string> texts_;
  std::vector<char*> pointers_;
};

std::vector<std::string> assignments(const EnvironmentVariables& environment) {
  std::vector<std::string> texts;
  for (const auto& [name, value] : environment) {
    texts.push_back(name + "=" + value);
  }
  return texts;
}

// Closes all descriptors of a forked launcher except the standard ones and `kept`. Otherwise a pipe that the launcher
// closes would stay open here. Returns the new number of `kept`.
int close_others(int kept) {
  constexpr int kPlace = STDERR_FILENO + 1;
  dup2(kept, kPlace);
  if (close_range(kPlace + 1, ~0U, 0) != 0) {  // Available since Linux 5.9.
    constexpr int kMostWithout = 65536;
    for (int descriptor = kPlace + 1; descriptor < kMostWithout; ++descriptor) {
      close(descriptor);
    }
  }
  return kPlace;
}

// The guard's main function: collects groups until the launcher is gone, then kills them. It reads a group's id to add
// it, the negative id to remove it, and 0 to remove all. It may be a forked copy of a
// launcher with threads, so it allocates no memory.
[[noreturn]] void guard_groups(int launcher) {
  setsid();  // Signals to the launcher's group must not reach it.
  prctl(PR_SET_NAME, "narrowcast-grd");
  const int announcements = close_others(launcher);
  std::array<pid_t, kMostWorkers> groups;
  size_t count = 0;
  for (pid_t group = 0; read(announcements, &group, sizeof(group)) == sizeof(group);) {
    if (group == 0) {
      count = 0;
    } else if (group < 0) {
      count = static_cast<size_t>(std::remove(groups.begin(), groups.begin() + count, -group) - groups.begin());
    } else if (count < groups.size()) {
      groups[count++] = group;
    }
  }
  for (size_t i = 0; i < count; ++i) {
    kill(-groups[i], SIGKILL);
  }
  _exit(0);
}

// A child's message if it cannot become a worker.
struct StartFailure {
  bool guarded = false;  // its process group was written to the guard
  int reason = 0;        // errno of the failed step
};

// Data for the child between fork and exec, prepared before the fork. After it, only calls that are safe in a forked
// copy of a process with threads are allowed.
struct ChildStart {
  CStrings arguments;
  CStrings environment;
  ChildStreams streams;
  int network = -1;  // as in WorkerCommand
  const std::vector<int64_t>& processors;
  pid_t launcher = getpid();
  int announcements = -1;
  int failure = -1;  // the pipe for a StartFailure
};

// Unblocks all signals. Signals that the launcher ignores because its parent did (nohup) stay ignored.
void unblock_signals() {
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
}

void direct_streams(ChildStreams streams) {
  const int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
  dup2(nothing, STDIN_FILENO);
  if (streams.output >= 0) {
    dup2(streams.output, STDOUT_FILENO);
  }
  if (streams.error >= 0) {
    dup2(streams.error, STDERR_FILENO);
  }
}

bool enter_network(int network) { return network < 0 || setns(network, CLONE_NEWNET) == 0; }

// Limits this process to these processors; an empty list changes nothing. Returns false, with errno, if none of them is
// usable.
bool use_processors(const std::vector<int64_t>& processors) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int64_t processor : processors) {
    CPU_SET(static_cast<size_t>(processor), &set);
  }
  return processors.empty() || sched_setaffinity(0, sizeof(set), &set) == 0;
}

[[noreturn]] void become_worker(ChildStart& start) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const pid_t group = getpid();
  const bool guarded = write(start.announcements, &group, sizeof(group)) == sizeof(group);
  const bool is_watched = guarded && getppid() == start.launcher;  // Otherwise the launcher died before the prctl.
  if (is_watched && enter_network(start.network)) {
    direct_streams(start.streams);
    program::undo_process_setup();
    unblock_signals();
    if (use_processors(start.processors)) {
      execve(start.arguments.get()[0], start.arguments.get(), start.environment.get());
    }
  }
  const StartFailure failure{.guarded = guarded, .reason = errno};
  [[maybe_unused]] const ssize_t written = write(start.failure, &failure, sizeof(failure));
  _exit(127);
}

// Forks a child that becomes a worker. Returns its id or its StartFailure.
std::variant<pid_t, StartFailure> fork_child(const WorkerCommand& command, ChildStreams streams, const Guard& guard) {
  Pipe pipe = make_pipe();
  ChildStart start{.arguments = CStrings(command.arguments),
                   .environment = CStrings(assignments(command.environment)),
                   .streams = streams,
                   .network = command.network,
                   .processors = command.processors,
                   .announcements = guard.announcements(),
                   .failure = pipe.write_end.get()};
  const pid_t pid = fork();
  TORCH_CHECK(pid >= 0, "fork: ", std::strerror(errno));
  if (pid == 0) {
    become_worker(start);
  }
  pipe.write_end.close();
  StartFailure failure;
  if (read(pipe.read_end.get(), &failure, sizeof(failure)) == sizeof(failure)) {
    waitpid(pid, nullptr, 0);
    return failure;
  }
  return pid;
}

}  // namespace

Pipe make_pipe() {
  int ends[2];
  TORCH_CHECK(pipe2(ends, O_CLOEXEC) == 0, "pipe2: ", std::strerror(errno));
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

Guard::Guard() { start(); }

void Guard::start() {
  Pipe pipe = make_pipe();
  pid_ = fork();
  TORCH_CHECK(pid_ >= 0, "fork: ", std::strerror(errno));
  if (pid_ == 0) {
    guard_groups(pipe.read_end.get());
  }
  announcements_ = std::move(pipe.write_end);
}

void Guard::revive() {
  if (waitpid(pid_, nullptr, WNOHANG) == 0) {
    return;
  }
  start();
  for (const pid_t group : groups_) {
    announce(group);
  }
}

// The write fails if the guard was killed. The next revive() then passes all groups to another guard.
void Guard::announce(pid_t group) const {
  [[maybe_unused]] const ssize_t written = write(announcements_.get(), &group, sizeof(group));
}

Guard::~Guard() {
  announcements_.close();
  waitpid(pid_, nullptr, 0);
}

void Guard::forget() {
  groups_.clear();
  announce(0);
}

void Guard::forget(pid_t group) {
  std::erase(groups_, group);
  announce(-group);
}

pid_t start_child(const WorkerCommand& command, ChildStreams streams, Guard& guard) {
  constexpr int kMostGuards = 3;  // More kills in a row cannot be an accident.
  for (int guards = 0; guards < kMostGuards; ++guards) {
    guard.revive();
    const auto outcome = fork_child(command, streams, guard);
    if (const pid_t* const pid = std::get_if<pid_t>(&outcome)) {
      guard.remember(*pid);
      return *pid;
    }
    const StartFailure& failure = std::get<StartFailure>(outcome);
    TORCH_CHECK_VALUE(!failure.guarded, command.arguments.front(),
                      ": cannot be executed: ", std::strerror(failure.reason));
  }
  TORCH_CHECK(false, "the launcher's guard (process narrowcast-grd) was killed ", kMostGuards, " times");
}

int run_in_child(int (*body)()) {
  const pid_t child = fork();
  if (child == 0) {
    _exit(body());
  }
  int status = 0;
  pid_t ended = -1;
  while (child > 0 && (ended = waitpid(child, &status, 0)) < 0 && errno == EINTR) {
  }
  return ended > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

void open_missing_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(stream, F_GETFD) == -1) {
      open("/dev/null", O_RDWR);  // Gets the lowest free number, which is this one.
    }
  }
}

void adopt_orphans() { TORCH_CHECK(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0, "prctl: ", std::strerror(errno)); }

}  // namespace narrowcast::launcher
