#include "trainer/base/process/signals.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>

#include "tests/support/error_message.h"

namespace narrowcast {
namespace {

using ::testing::ElementsAre;
using testing::error_message;

constexpr int kEnded = 99;

void end_with_code(int first) { _exit(kEnded + first); }

// Waits longer than the half second in which signals count as one: that time is tested.
void let_the_window_pass() {
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(600);
  while (std::chrono::steady_clock::now() < end) usleep(10'000);
}

TEST(SignalName, IsThatOfTheManual) {
  EXPECT_EQ(signal_name(SIGTERM), "SIGTERM");
  EXPECT_EQ(signal_name(SIGRTMIN + 3, "signal "), "signal " + std::to_string(SIGRTMIN + 3));
}

TEST(ParseSignals, NamesWhatItRefuses) {
  const SignalRules rules = {.reserved = {SIGSEGV}, .owner = "a training"};
  EXPECT_THAT(parse_signals("f", "SIGTERM,SIGUSR1,SIGTERM", rules), ElementsAre(SIGTERM, SIGUSR1, SIGTERM));
  const auto refusal = [&](const std::string& names) {
    return error_message<c10::ValueError>([&] { parse_signals("f", names, rules); });
  };
  EXPECT_EQ(refusal("SIGTERM,TERM"), "f=SIGTERM,TERM: 'TERM' is not a signal; example: SIGTERM,SIGINT");
  EXPECT_EQ(refusal("SIGTERM,"), "f=SIGTERM,: '' is not a signal; example: SIGTERM,SIGINT");
  EXPECT_EQ(refusal("SIGSEGV"), "f=SIGSEGV: SIGSEGV cannot be handled by a training");
}

TEST(CaughtSignals, RememberTheFirst) {
  const CaughtSignals caught({SIGTERM, SIGUSR1}, end_with_code);
  EXPECT_EQ(caught.first(), 0);
  raise(SIGUSR1);
  EXPECT_EQ(caught.first(), SIGUSR1);
  raise(SIGTERM);
  EXPECT_EQ(caught.first(), SIGUSR1) << "sent to this process and to its group: one signal";
}

TEST(CaughtSignals, BeginAnew) {
  {
    const CaughtSignals caught({SIGUSR1}, end_with_code);
    raise(SIGUSR1);
  }
  EXPECT_EQ(CaughtSignals({SIGUSR1}, end_with_code).first(), 0);
}

TEST(CaughtSignals, LeaveIgnoredSignalsIgnored) {
  const auto before = std::signal(SIGHUP, SIG_IGN);
  {
    const CaughtSignals caught({SIGHUP}, end_with_code);
    raise(SIGHUP);
    EXPECT_EQ(caught.first(), 0);
  }
  std::signal(SIGHUP, before);
}

void count(int /*signal*/) {}

TEST(CaughtSignals, RestoreTheFormerActions) {
  const auto before = std::signal(SIGUSR2, count);
  { const CaughtSignals caught({SIGUSR2, SIGUSR2}, end_with_code); }
  EXPECT_EQ(std::signal(SIGUSR2, before), count);
}

TEST(CaughtSignalsDeathTest, ASecondSignalLaterEndsTheProcess) {
  const auto two_signals = [](void (*end)(int)) {
    const CaughtSignals caught({SIGTERM, SIGUSR1}, end);
    raise(SIGUSR1);
    let_the_window_pass();
    raise(SIGTERM);
    _exit(0);
  };
  EXPECT_EXIT(two_signals(end_with_code), ::testing::ExitedWithCode(kEnded + SIGUSR1), "") << "that of the first";
  EXPECT_EXIT(two_signals(nullptr), ::testing::KilledBySignal(SIGTERM), "");
}

TEST(CaughtSignalsDeathTest, AreIgnoredForGoodOnceTheProcessIsAboutToEnd) {
  const auto signalled_at_the_end = [] {
    {
      CaughtSignals caught({SIGTERM, SIGUSR1}, end_with_code);
      raise(SIGUSR1);
      caught.ignore();
      let_the_window_pass();
      raise(SIGTERM);
    }
    raise(SIGTERM);
    _exit(kEnded);
  };
  EXPECT_EXIT(signalled_at_the_end(), ::testing::ExitedWithCode(kEnded), "");
}

}  // namespace
}  // namespace narrowcast
