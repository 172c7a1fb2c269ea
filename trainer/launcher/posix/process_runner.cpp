#include "trainer/launcher/posix/process_runner.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace narrowcast::launcher {
namespace {

constexpr int kHandled[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
constexpr std::chrono::milliseconds kOutputPatience{2000};

bool is_ignored(int signal) {
  struct sigaction action {};
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

Descriptor open_log(const std::filesystem::path& path) {
  Descriptor file(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644));
  TORCH_CHECK_VALUE(file, path.string(), ": cannot be written: ", std::strerror(errno));
  return file;
}

Ending ending_of(const siginfo_t& info) {
  const bool exited = info.si_code == CLD_EXITED;
  return {.exit_code = exited ? info.si_status : 0, .signal = exited ? 0 : info.si_status};
}

int milliseconds_until(std::optional<Clock::time_point> deadline) {
  if (!deadline) {
    return -1;
  }
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(*deadline - Clock::now());
  return static_cast<int>(std::max<int64_t>(0, left.count()));
}

}  // namespace

SignalDescriptor::SignalDescriptor() {
  std::signal(SIGCHLD, SIG_DFL);  // If it was ignored, the kernel would keep endings from us.
  sigset_t handled;
  sigemptyset(&handled);
  sigaddset(&handled, SIGCHLD);
  for (const int signal : kHandled) {
    if (!is_ignored(signal)) {
      sigaddset(&handled, signal);
    }
  }
  descriptor_ = Descriptor(signalfd(-1, &handled, SFD_CLOEXEC | SFD_NONBLOCK));
  TORCH_CHECK(descriptor_, "signalfd: ", std::strerror(errno));
  sigaddset(&handled, SIGPIPE);
  sigprocmask(SIG_BLOCK, &handled, &before_);
}

SignalDescriptor::~SignalDescriptor() {
  // A SIGPIPE that was held back must not strike now.
  const timespec at_once{};
  sigset_t pipe_only;
  sigemptyset(&pipe_only);
  sigaddset(&pipe_only, SIGPIPE);
  sigtimedwait(&pipe_only, nullptr, &at_once);
  sigprocmask(SIG_SETMASK, &before_, nullptr);
}

int SignalDescriptor::next() const {
  signalfd_siginfo info{};
  return read(descriptor_.get(), &info, sizeof(info)) == sizeof(info) ? static_cast<int>(info.ssi_signo) : 0;
}

ProcessRunner::ProcessRunner(OutputOptions options) : options_(options), relay_(STDOUT_FILENO, STDERR_FILENO) {
  adopt_orphans();
}

ProcessRunner::~ProcessRunner() {
  if (!workers_.empty()) {
    signal_groups(SIGKILL);
    reap_workers();
  }
}

pid_t ProcessRunner::start(const WorkerCommand& command) {
  std::error_code error;
  const std::filesystem::path folder = command.error_file.parent_path();
  std::filesystem::create_directories(folder, error);
  TORCH_CHECK_VALUE(!error, folder.string(), ": cannot be made: ", error.message());
  pid_t pid = 0;
  if (!command.output_file.empty()) {
    pid = start_logged(command);
  } else {
    pid = options_.prefix ? start_shown(command) : start_child(command, {}, guard_);
  }
  workers_.push_back({command.rank, pid});
  return pid;
}

pid_t ProcessRunner::start_shown(const WorkerCommand& command) {
  Pipe output = make_pipe();
  Pipe error = make_pipe();
  const pid_t pid = start_child(command, {output.write_end.get(), error.write_end.get()}, guard_);
  relay_.add(command.rank, c10::str("[", command.rank, "]: "), std::move(output.read_end), std::move(error.read_end));
  return pid;
}

pid_t ProcessRunner::start_logged(const WorkerCommand& command) {
  const Descriptor output = open_log(command.output_file);
  const Descriptor error = open_log(command.log_file);
  return start_child(command, {output.get(), error.get()}, guard_);
}

Event ProcessRunner::wait(std::optional<Clock::time_point> deadline) {
  while (events_.empty()) {
    if (!anything_left()) {
      relay_.finish(kOutputPatience);
      reap_workers();
      return {.kind = Event::Kind::kAllGone};
    }
    if (deadline && Clock::now() >= *deadline) {
      return {.kind = Event::Kind::kTimeout};
    }
    poll_once(deadline);
  }
  const Event event = events_.front();
  events_.pop_front();
  return event;
}

void ProcessRunner::poll_once(std::optional<Clock::time_point> deadline) {
  std::vector<pollfd> polls = {{signals_.get(), POLLIN, 0}};
  relay_.add_polls(polls);
  if (poll(polls.data(), polls.size(), milliseconds_until(deadline)) < 0) {
    TORCH_CHECK(errno == EINTR, "poll: ", std::strerror(errno));
    return;
  }
  if (polls.front().revents != 0) {
    take_signals();
  }
  if (!relay_.handle(polls)) {
    events_.push_back({.kind = Event::Kind::kSignal, .signal = SIGPIPE});
  }
}

void ProcessRunner::take_signals() {
  while (const int signal = signals_.next()) {
    if (signal != SIGCHLD) {
      events_.push_back({.kind = Event::Kind::kSignal, .signal = signal});
    } else if (!look_at_workers()) {
      adopted_children();  // An orphan ended; this reaps it.
    }
  }
}

// Returns whether a worker ended since the last look. One SIGCHLD may stand for several
// children, and the kernel does not tell the order: the ones that a signal ended come
// first, as losing a peer ends a program by an exit code, or by SIGABRT.
bool ProcessRunner::look_at_workers() {
  std::vector<Event> ended;
  for (Worker& worker : workers_) {
    siginfo_t info{};
    if (worker.ended || waitid(P_PID, static_cast<id_t>(worker.pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
        info.si_pid == 0) {
      continue;
    }
    worker.ended = true;
    ended.push_back({.kind = Event::Kind::kWorkerEnded, .rank = worker.rank, .ending = ending_of(info)});
  }
  std::stable_partition(ended.begin(), ended.end(),
                        [](const Event& event) { return event.ending.signal != 0 && event.ending.signal != SIGABRT; });
  events_.insert(events_.end(), ended.begin(), ended.end());
  return !ended.empty();
}

bool ProcessRunner::is_worker(pid_t pid) const {
  return std::any_of(workers_.begin(), workers_.end(), [pid](const Worker& worker) { return worker.pid == pid; });
}

// Orphans of workers; those that ended are reaped here and not listed.
std::vector<AdoptedChild> ProcessRunner::adopted_children() const {
  std::vector<AdoptedChild> adopted;
  for (const AdoptedChild& child : list_children()) {
    if (child.pid == guard_.pid() || is_worker(child.pid)) {
      continue;
    }
    if (child.ended) {
      waitpid(child.pid, nullptr, WNOHANG);
    } else {
      adopted.push_back(child);
    }
  }
  return adopted;
}

bool ProcessRunner::anything_left() {
  const bool any_running =
      std::any_of(workers_.begin(), workers_.end(), [](const Worker& worker) { return !worker.ended; });
  return any_running || !adopted_children().empty();
}

void ProcessRunner::signal_groups(int signal) const {
  for (const Worker& worker : workers_) {
    kill(-worker.pid, signal);
  }
}

void ProcessRunner::send(int signal) {
  signal_groups(signal);
  for (const AdoptedChild& child : adopted_children()) {
    if (!is_worker(getpgid(child.pid))) {
      kill(child.pid, signal);
    }
  }
}

void ProcessRunner::reap_workers() {
  guard_.forget();  // Before the ids can be given to others.
  for (const Worker& worker : workers_) {
    waitpid(worker.pid, nullptr, WNOHANG);  // One stuck in the kernel must not hold us too.
  }
  workers_.clear();
}

}  // namespace narrowcast::launcher
