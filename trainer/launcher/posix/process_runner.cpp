#include "trainer/launcher/posix/process_runner.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "ops/common/file_descriptor.h"
#include "trainer/base/process/signals.h"

namespace narrowcast::launcher {
namespace {

bool is_ignored(int signal) {
  struct sigaction action {};
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

constexpr std::chrono::milliseconds kOutputPatience{2000};

// Other users may write into a folder of logs. Without O_NONBLOCK, opening a pipe of theirs would wait for ever.
FileDescriptor open_log(const std::filesystem::path& path) {
  const int flags = O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
  FileDescriptor file(open(path.c_str(), flags, 0644));
  TORCH_CHECK_VALUE(file.is_open() || errno == ENXIO, path.string(), ": cannot be written: ", std::strerror(errno));
  struct stat status = {};
  TORCH_CHECK_VALUE(file.is_open() && fstat(file.get(), &status) == 0 && S_ISREG(status.st_mode), path.string(),
                    ": cannot be written: it is not a regular file");
  return file;
}

Ending ending_of(const siginfo_t& info) {
  const bool exited = info.si_code == CLD_EXITED;
  return {.exit_code = exited ? info.si_status : 0, .signal = exited ? 0 : info.si_status};
}

// Each worker has its own error file, whose path the processes that it starts inherit.
std::string mark_of(const WorkerCommand& command) {
  const auto variable = command.environment.find("TORCHELASTIC_ERROR_FILE");
  return variable == command.environment.end() ? "" : variable->first + "=" + variable->second;
}

int milliseconds_until(std::optional<Clock::time_point> deadline) {
  if (!deadline) {
    return -1;
  }
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(*deadline - Clock::now());
  return static_cast<int>(std::max<int64_t>(0, left.count()));
}

}  // namespace

// SIGKILL and SIGSTOP cannot be handled; the others have another meaning here.
std::vector<int> parse_handled_signals(const std::string& flag, const std::string& names) {
  return parse_signals(flag, names, {.reserved = {SIGKILL, SIGSTOP, SIGCHLD, SIGPIPE}, .owner = "a launcher"});
}

SignalDescriptor::SignalDescriptor(const std::vector<int>& handled) {
  std::signal(SIGCHLD, SIG_DFL);  // If it were ignored, the kernel would not report ends of children.
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGCHLD);
  for (const int signal : handled) {
    if (!is_ignored(signal)) {
      sigaddset(&set, signal);
    }
  }
  descriptor_ = FileDescriptor(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  TORCH_CHECK(descriptor_.is_open(), "signalfd: ", std::strerror(errno));
  sigaddset(&set, SIGPIPE);
  sigprocmask(SIG_BLOCK, &set, &before_);
}

SignalDescriptor::~SignalDescriptor() {
  // A pending SIGPIPE must not arrive when it is unblocked.
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

ProcessRunner::ProcessRunner(const RunnerOptions& options)
    : prefix_(options.prefix), signals_(options.signals), relay_(STDOUT_FILENO, STDERR_FILENO) {
  adopt_orphans();
}

ProcessRunner::~ProcessRunner() {
  if (!workers_.empty()) {
    signal_groups(SIGKILL);
    reap_workers();
  }
}

void ProcessRunner::begin_group() {
  if (!group_lives_) {
    relay_.forget();
    filtered_logs_.clear();
    group_lives_ = true;
  }
}

pid_t ProcessRunner::start(const WorkerCommand& command) {
  begin_group();
  std::error_code error;
  const std::filesystem::path folder = command.error_file.parent_path();
  std::filesystem::create_directories(folder, error);
  TORCH_CHECK_VALUE(!error, folder.string(), ": cannot be created: ", error.message());
  Stream output = open_stream(command, OutputRelay::Kind::kOutput);
  Stream errors = open_stream(command, OutputRelay::Kind::kError);
  const pid_t pid = start_child(command, {output.workers_end.get(), errors.workers_end.get()}, guard_);
  relay_.add(std::move(output.tap));
  relay_.add(std::move(errors.tap));
  workers_.push_back({.rank = command.rank, .pid = pid, .mark = mark_of(command)});
  return pid;
}

ProcessRunner::Stream ProcessRunner::open_stream(const WorkerCommand& command, OutputRelay::Kind kind) {
  const StreamTarget& target = kind == OutputRelay::Kind::kOutput ? command.output : command.error;
  FileDescriptor file = target.file.empty() ? FileDescriptor() : open_log(target.file);
  OutputRelay::Tap tap{.rank = command.rank, .kind = kind, .shown = target.shown, .path = target.file};
  if (target.shown ? (!prefix_ && !file.is_open()) : file.is_open()) {
    return {std::move(file), std::move(tap)};  // The worker writes to our stream or to the file itself.
  }
  Pipe pipe = make_pipe();
  tap.pipe = std::move(pipe.read_end);
  tap.copy = std::move(file);
  tap.prefix = prefix_ ? command.prefix : "";
  tap.filtered = filtered_log(target.filter);
  return {std::move(pipe.write_end), std::move(tap)};
}

// Returns the log that all workers of one attempt share.
std::shared_ptr<FilteredLog> ProcessRunner::filtered_log(const LineFilter& filter) {
  if (filter.file.empty()) {
    return nullptr;
  }
  std::shared_ptr<FilteredLog> log = filtered_logs_[filter.file].lock();
  if (log == nullptr) {
    log = std::make_shared<FilteredLog>(filter, open_log(filter.file));
    filtered_logs_[filter.file] = log;
  }
  return log;
}

Event ProcessRunner::wait(std::optional<Clock::time_point> deadline) {
  while (events_.empty()) {
    if (group_lives_ && !anything_left()) {
      relay_.finish(kOutputPatience);
      reap_workers();
      group_lives_ = false;
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
    } else if (guard_.revive(); !look_at_workers()) {
      adopted_children();  // An orphan ended; this reaps it.
    }
  }
}

// Returns whether a worker ended since the last call. One SIGCHLD may stand for several children, and the kernel does
// not report their order. Workers that a signal ended come first, except by SIGABRT: losing a peer ends a program by an
// exit code or SIGABRT.
bool ProcessRunner::look_at_workers() {
  std::vector<Event> ended;
  for (Worker& worker : workers_) {
    siginfo_t info{};
    if (worker.ended || waitid(P_PID, static_cast<id_t>(worker.pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
        info.si_pid == 0) {
      continue;
    }
    worker.ended = true;
    relay_.catch_up(worker.rank);
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

// Returns the running orphans of workers, and reaps the ones that ended. After it reaped one it looks again: the pass
// over the processes may have met the children of that one before they became orphans themselves.
std::vector<ProcessEntry> ProcessRunner::adopted_children() const {
  std::vector<ProcessEntry> adopted;
  for (bool reaped = true; std::exchange(reaped, false);) {
    adopted.clear();
    for (const ProcessEntry& child : list_children()) {
      if (child.pid == guard_.pid() || is_worker(child.pid)) {
        continue;
      }
      if (!child.ended) {
        adopted.push_back(child);
      } else if (waitpid(child.pid, nullptr, WNOHANG) == child.pid) {
        reaped = true;
      }
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
  for (const ProcessEntry& child : adopted_children()) {
    if (!is_worker(getpgid(child.pid))) {
      kill(child.pid, signal);
    }
  }
}

void ProcessRunner::send_to(int64_t rank, int signal) {
  for (const Worker& worker : workers_) {
    if (worker.rank == rank && !worker.ended) {
      kill(-worker.pid, signal);
    }
  }
}

bool ProcessRunner::handles(int64_t rank, int signal) const {
  return std::ranges::any_of(workers_, [&](const Worker& worker) {
    return worker.rank == rank && !worker.ended && group_handles(worker.pid, signal);
  });
}

bool ProcessRunner::clear(int64_t rank) {
  const auto worker = std::ranges::find(workers_, rank, &Worker::rank);
  if (worker == workers_.end()) {
    return true;
  }
  if (!worker->ended || kill_rest(*worker)) {
    return false;
  }
  guard_.forget(worker->pid);  // Before the id can be reused.
  waitpid(worker->pid, nullptr, WNOHANG);
  workers_.erase(worker);
  relay_.finish_rank(rank);
  return true;
}

// Kills the processes that a worker left when it ended: its process group, and orphans in other groups that have its
// mark. Returns whether there were any. A process whose mark cannot be read yet counts, and so does an orphan that has
// ended, for the reason in adopted_children().
bool ProcessRunner::kill_rest(const Worker& worker) const {
  kill(-worker.pid, SIGKILL);
  bool any_left = false;
  for (const ProcessEntry& process : list_processes()) {
    const bool in_group = process.group == worker.pid && process.pid != worker.pid;
    const bool is_orphan = process.parent == getpid() && process.pid != guard_.pid() && !is_worker(process.pid);
    if (process.ended) {
      any_left |= is_orphan && waitpid(process.pid, nullptr, WNOHANG) == process.pid;
    } else if (in_group) {
      any_left = true;
    } else if (is_orphan) {
      const std::optional<bool> has_mark = was_started_with(process.pid, worker.mark);
      any_left |= has_mark.value_or(true);
      if (has_mark.value_or(false)) {
        kill(process.pid, SIGKILL);
      }
    }
  }
  return any_left;
}

void ProcessRunner::reap_workers() {
  guard_.forget();  // Before the ids can be reused.
  for (const Worker& worker : workers_) {
    waitpid(worker.pid, nullptr, WNOHANG);  // WNOHANG: a process may be stuck in the kernel.
  }
  workers_.clear();
}

}  // namespace narrowcast::launcher
