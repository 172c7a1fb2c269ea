#include "trainer/launcher/posix/child_process.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "trainer/launcher/posix/pipe.h"

namespace narrowcast::launcher {
namespace {

// Lists as execve wants them.
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

// The guard's whole life: remembers groups until the launcher is gone, then kills them.
[[noreturn]] void guard_groups(int announcements) {
  setsid();  // Out of reach of what is sent to the launcher's group.
  prctl(PR_SET_NAME, "narrowcast-grd");
  std::vector<pid_t> groups;
  for (pid_t group = 0; read(announcements, &group, sizeof(group)) == sizeof(group);) {
    if (group == 0) {
      groups.clear();
    } else {
      groups.push_back(group);
    }
  }
  for (const pid_t group : groups) {
    kill(-group, SIGKILL);
  }
  _exit(0);
}

// Everything the child needs between fork and exec, made before the fork: after
// it, only calls that are safe in a copy of a process with threads are allowed.
struct ChildStart {
  CStrings arguments;
  CStrings environment;
  ChildStreams streams;
  pid_t launcher = getpid();
  int announcements = -1;
  int failure = -1;  // where to say why exec failed
};

// What the launcher ignores because it was told to (nohup), the worker ignores too.
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

[[noreturn]] void become_worker(ChildStart& start) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const pid_t group = getpid();
  const bool guarded = write(start.announcements, &group, sizeof(group)) == sizeof(group);
  if (guarded && getppid() == start.launcher) {  // Else the launcher died before prctl could tell.
    direct_streams(start.streams);
    unblock_signals();
    execve(start.arguments.get()[0], start.arguments.get(), start.environment.get());
  }
  const int reason = errno;
  [[maybe_unused]] const ssize_t told = write(start.failure, &reason, sizeof(reason));
  _exit(127);
}

}  // namespace

Guard::Guard() {
  Pipe pipe = make_pipe();
  pid_ = fork();
  TORCH_CHECK(pid_ >= 0, "fork: ", std::strerror(errno));
  if (pid_ == 0) {
    pipe.write_end.close();
    guard_groups(pipe.read_end.get());
  }
  announcements_ = std::move(pipe.write_end);
}

Guard::~Guard() {
  announcements_.close();
  waitpid(pid_, nullptr, 0);
}

void Guard::forget() {
  const pid_t all = 0;
  // If the guard itself was killed there is nobody to tell.
  [[maybe_unused]] const ssize_t told = write(announcements_.get(), &all, sizeof(all));
}

pid_t start_child(const WorkerCommand& command, ChildStreams streams, const Guard& guard) {
  Pipe failure = make_pipe();
  ChildStart start{.arguments = CStrings(command.arguments),
                   .environment = CStrings(assignments(command.environment)),
                   .streams = streams,
                   .announcements = guard.announcements(),
                   .failure = failure.write_end.get()};
  const pid_t pid = fork();
  TORCH_CHECK(pid >= 0, "fork: ", std::strerror(errno));
  if (pid == 0) {
    become_worker(start);
  }
  failure.write_end.close();
  int reason = 0;
  if (read(failure.read_end.get(), &reason, sizeof(reason)) == sizeof(reason)) {
    waitpid(pid, nullptr, 0);
    TORCH_CHECK_VALUE(false, command.arguments.front(), ": cannot be executed: ", std::strerror(reason));
  }
  return pid;
}

void open_missing_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(stream, F_GETFD) == -1) {
      open("/dev/null", O_RDWR);  // Takes the lowest free number, which is this one.
    }
  }
}

void adopt_orphans() { TORCH_CHECK(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0, "prctl: ", std::strerror(errno)); }

std::vector<AdoptedChild> list_children() {
  std::vector<AdoptedChild> children;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    std::ifstream file(entry.path() / "stat");
    std::string stat;
    if (name.find_first_not_of("0123456789") != std::string::npos || !std::getline(file, stat)) {
      continue;  // Not a process, or one that has just gone.
    }
    // "PID (NAME) STATE PPID ...", where NAME may hold anything.
    std::istringstream fields(stat.substr(stat.rfind(')') + 1));
    char state = 0;
    pid_t parent = 0;
    fields >> state >> parent;
    if (parent == getpid()) {
      children.push_back({static_cast<pid_t>(std::stol(name)), state == 'Z'});
    }
  }
  return children;
}

}  // namespace narrowcast::launcher
