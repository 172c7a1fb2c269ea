#include "trainer/launcher/posix/signal_descriptor.h"

#include <absl/strings/str_split.h>
#include <c10/util/Exception.h>
#include <sys/signalfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace narrowcast::launcher {
namespace {

// SIGKILL and SIGSTOP cannot be handled; the others have another meaning here.
constexpr int kReserved[] = {SIGKILL, SIGSTOP, SIGCHLD, SIGPIPE};

bool is_ignored(int signal) {
  struct sigaction action {};
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

// 0 if there is no such signal.
int signal_named(const std::string& name) {
  for (int signal = 1; signal < NSIG; ++signal) {
    const char* const abbreviation = sigabbrev_np(signal);
    if (abbreviation != nullptr && name == std::string("SIG") + abbreviation) {
      return signal;
    }
  }
  return 0;
}

}  // namespace

std::vector<int> parse_signals(const std::string& flag, const std::string& names) {
  std::vector<int> signals;
  for (const std::string& name : std::vector<std::string>(absl::StrSplit(names, ','))) {
    const int signal = signal_named(name);
    TORCH_CHECK_VALUE(signal != 0, flag, "=", names, ": '", name, "' is no signal; an example is SIGTERM,SIGINT");
    TORCH_CHECK_VALUE(std::count(std::begin(kReserved), std::end(kReserved), signal) == 0, flag, "=", names, ": ", name,
                      " cannot be handled by a launcher");
    signals.push_back(signal);
  }
  return signals;
}

SignalDescriptor::SignalDescriptor(const std::vector<int>& handled) {
  std::signal(SIGCHLD, SIG_DFL);  // If it was ignored, the kernel would keep endings from us.
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGCHLD);
  for (const int signal : handled) {
    if (!is_ignored(signal)) {
      sigaddset(&set, signal);
    }
  }
  descriptor_ = files::FileDescriptor(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  TORCH_CHECK(descriptor_.is_open(), "signalfd: ", std::strerror(errno));
  sigaddset(&set, SIGPIPE);
  sigprocmask(SIG_BLOCK, &set, &before_);
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

}  // namespace narrowcast::launcher
