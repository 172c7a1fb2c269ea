// Signals: their names, and how a process takes note of one instead of ending.
#pragma once

#include <string>
#include <vector>

namespace narrowcast {

// "SIGTERM"; for a signal without a name, `prefix` and its number.
std::string signal_name(int signal, const std::string& prefix = "");

// The rules for a list of signals.
struct SignalRules {
  std::vector<int> reserved;  // signals that the list may not name
  std::string owner;          // for the error: "a launcher"
};

// The numbers of signals named like "SIGTERM,SIGINT". Throws c10::ValueError naming `flag`, its value and the name for
// a signal that does not exist or is reserved.
std::vector<int> parse_signals(const std::string& flag, const std::string& names, const SignalRules& rules);

// While it exists, the first of these signals that the process is sent is only remembered. A further one, half a second
// or more later, ends the process by `end`. Nearer ones count as the same, because a launcher and the group of its
// processes may both be sent one. A signal that the process was told to ignore stays ignored. At most one exists at a
// time. The signals' actions are as before when it is gone.
class CaughtSignals {
 public:
  // `end` ends the process with the exit code of the first signal, which it is given: the code says why the process
  // ends, whatever a launcher sends it meanwhile. It runs in a signal handler, and so may call only what is safe there.
  // Null: the further signal's default action ends the process.
  CaughtSignals(const std::vector<int>& signals, void (*end)(int first));
  ~CaughtSignals();
  CaughtSignals(const CaughtSignals&) = delete;
  CaughtSignals& operator=(const CaughtSignals&) = delete;

  // The signal that came first, 0 if none did.
  int first() const;

  // From now on, and for good, the process ignores these signals: it is about to end by itself, with its own code.
  void ignore();

 private:
  struct Former;  // a signal and its action before
  std::vector<Former> former_;
};

}  // namespace narrowcast
