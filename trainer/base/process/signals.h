// Signals: their names, and how a process records one instead of ending.
#pragma once

#include <string>
#include <vector>

namespace narrowcast {

// "SIGTERM"; for a signal without a name, `prefix` and its number.
std::string signal_name(int signal, const std::string& prefix = "");

// The rules for a list of signals.
struct SignalRules {
  std::vector<int> reserved;  // signals that the list must not contain
  std::string owner;          // for the error: "a launcher"
};

// The numbers of signals named like "SIGTERM,SIGINT". Throws c10::ValueError naming `flag`, its value and the name for
// a signal that does not exist or is reserved.
std::vector<int> parse_signals(const std::string& flag, const std::string& names, const SignalRules& rules);

// While it exists, the first of these signals that the process receives is only recorded. A further one, half a second
// or more later, ends the process by `end`. Earlier ones count as the same signal, because a launcher and the process
// group may both be sent one. A signal that the process ignored before stays ignored. At most one object exists at a
// time. The destructor restores the signals' former actions.
class CaughtSignals {
 public:
  // `end` receives the first signal, and ends the process with the exit code for it. So the code shows why the process
  // ends, even if a launcher sends other signals later. It runs in a signal handler, and may call only
  // async-signal-safe functions. Null: the further signal's default action ends the process.
  CaughtSignals(const std::vector<int>& signals, void (*end)(int first));
  ~CaughtSignals();
  CaughtSignals(const CaughtSignals&) = delete;
  CaughtSignals& operator=(const CaughtSignals&) = delete;

  // The signal that came first, 0 if none did.
  int first() const;

  // From now on, permanently, the process ignores these signals: it is about to exit with its own code.
  void ignore();

 private:
  struct Former;  // a signal and its action before
  std::vector<Former> former_;
};

}  // namespace narrowcast
