#include "trainer/launcher/posix/process_runner.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/error_message.h"

namespace narrowcast::launcher {
namespace {

using ::testing::ElementsAre;

std::string refusal(const std::string& names) {
  return testing::error_message<c10::ValueError>([&] { parse_handled_signals("--signals_to_handle", names); });
}

TEST(ParseSignals, KnowsThemByName) {
  EXPECT_THAT(parse_handled_signals("--s", "SIGTERM,SIGUSR1"), ElementsAre(SIGTERM, SIGUSR1));
}

TEST(ParseSignals, RefusesTheRest) {
  EXPECT_EQ(refusal("SIGTERM,TERM"),
            "--signals_to_handle=SIGTERM,TERM: 'TERM' is not a signal; example: SIGTERM,SIGINT");
  EXPECT_EQ(refusal(""), "--signals_to_handle=: '' is not a signal; example: SIGTERM,SIGINT");
  EXPECT_EQ(refusal("SIGKILL"), "--signals_to_handle=SIGKILL: SIGKILL cannot be handled by a launcher");
  EXPECT_EQ(refusal("SIGCHLD"), "--signals_to_handle=SIGCHLD: SIGCHLD cannot be handled by a launcher");
}

TEST(SignalDescriptor, TakesTheSignalsItWasToldOf) {
  const SignalDescriptor signals({SIGUSR1});
  EXPECT_EQ(signals.next(), 0);
  raise(SIGUSR1);
  EXPECT_EQ(signals.next(), SIGUSR1);
  EXPECT_EQ(signals.next(), 0);
}

TEST(SignalDescriptor, LeavesTheOthersAlone) {
  const SignalDescriptor signals({SIGUSR1});
  sigset_t blocked;
  sigprocmask(SIG_BLOCK, nullptr, &blocked);
  EXPECT_EQ(sigismember(&blocked, SIGUSR1), 1);
  EXPECT_EQ(sigismember(&blocked, SIGTERM), 0);
}

TEST(SignalDescriptor, LeavesIgnoredSignalsIgnored) {
  const auto before = std::signal(SIGHUP, SIG_IGN);
  const SignalDescriptor signals({SIGHUP});
  raise(SIGHUP);
  EXPECT_EQ(signals.next(), 0);
  std::signal(SIGHUP, before);
}

}  // namespace
}  // namespace narrowcast::launcher
