#include "trainer/base/process/signals.h"

#include <c10/util/Exception.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <ctime>

namespace narrowcast {
namespace {

constexpr std::chrono::nanoseconds kRepeatWindow = std::chrono::milliseconds(500);

// A signal handler may use only lock-free variables.
std::atomic<bool> catches = false;
std::atomic<int64_t> caught_at = 0;  // in nanoseconds of the monotonic clock; 0: no signal yet
std::atomic<int> caught_signal = 0;
std::atomic<void (*)(int)> end_process = nullptr;
static_assert(std::atomic<int64_t>::is_always_lock_free && std::atomic<void (*)(int)>::is_always_lock_free);

// A signal handler may not call std::chrono's clocks.
int64_t monotonic_nanoseconds() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

void end_by_default(int signal) {
  ::signal(signal, SIG_DFL);
  raise(signal);  // The signal is blocked while its handler runs, and is delivered when the handler returns.
}

void take_note(int signal) {
  const int errno_before = errno;
  int64_t first = 0;
  const int64_t now = monotonic_nanoseconds();
  if (caught_at.compare_exchange_strong(first, now)) {
    caught_signal = signal;
  } else if (now - first >= kRepeatWindow.count()) {
    const auto end = end_process.load();
    end == nullptr ? end_by_default(signal) : end(caught_signal);
  }
  errno = errno_before;
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

std::vector<std::string> split_at_commas(const std::string& list) {
  std::vector<std::string> parts;
  size_t begin = 0;
  for (size_t comma = list.find(','); comma != std::string::npos; comma = list.find(',', begin)) {
    parts.push_back(list.substr(begin, comma - begin));
    begin = comma + 1;
  }
  parts.push_back(list.substr(begin));
  return parts;
}

}  // namespace

std::string signal_name(int signal, const std::string& prefix) {
  const char* const name = sigabbrev_np(signal);
  return name == nullptr ? prefix + std::to_string(signal) : std::string("SIG") + name;
}

std::vector<int> parse_signals(const std::string& flag, const std::string& names, const SignalRules& rules) {
  std::vector<int> signals;
  for (const std::string& name : split_at_commas(names)) {
    const int signal = signal_named(name);
    TORCH_CHECK_VALUE(signal != 0, flag, "=", names, ": '", name, "' is not a signal; example: SIGTERM,SIGINT");
    TORCH_CHECK_VALUE(std::ranges::find(rules.reserved, signal) == rules.reserved.end(), flag, "=", names, ": ", name,
                      " cannot be handled by ", rules.owner);
    signals.push_back(signal);
  }
  return signals;
}

struct CaughtSignals::Former {
  int signal = 0;
  struct sigaction action {};
};

CaughtSignals::CaughtSignals(const std::vector<int>& signals, void (*end)(int first)) {
  TORCH_CHECK(!catches.exchange(true), "signals are caught already");
  caught_at = 0;
  caught_signal = 0;
  end_process = end;
  struct sigaction action {};
  action.sa_handler = take_note;
  action.sa_flags = SA_RESTART;  // Interrupted system calls start again.
  sigemptyset(&action.sa_mask);
  for (const int signal : signals) {
    Former former{.signal = signal};
    const bool is_known = sigaction(signal, nullptr, &former.action) == 0;
    TORCH_CHECK(is_known, signal_name(signal, "signal "), ": cannot be handled: ", std::strerror(errno));
    if (former.action.sa_handler == SIG_IGN) {
      continue;
    }
    former_.push_back(former);
    sigaction(signal, &action, nullptr);
  }
}

CaughtSignals::~CaughtSignals() {
  std::for_each(former_.rbegin(), former_.rend(),  // If a signal is named twice, its first action is restored last.
                [](const Former& former) { sigaction(former.signal, &former.action, nullptr); });
  catches = false;
}

int CaughtSignals::first() const { return caught_signal; }

void CaughtSignals::ignore() {
  for (const Former& former : former_) {
    ::signal(former.signal, SIG_IGN);
  }
  former_.clear();
}

}  // namespace narrowcast
