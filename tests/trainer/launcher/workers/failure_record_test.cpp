#include "trainer/launcher/workers/failure_record.h"

#include <gtest/gtest.h>

#include <csignal>

namespace narrowcast::launcher {
namespace {

TEST(GroupEnd, KnowsTheLaunchersExitCode) {
  EXPECT_EQ(GroupEnd{}.exit_code(), 0);
  FailureRecord failure;
  failure.ending = {.exit_code = 7};
  EXPECT_EQ((GroupEnd{.cause = GroupEnd::Cause::kFailed, .failure = failure}.exit_code()), 7);
  failure.ending = {.signal = SIGSEGV};
  EXPECT_EQ((GroupEnd{.cause = GroupEnd::Cause::kFailed, .failure = failure}.exit_code()), 128 + SIGSEGV);
  EXPECT_EQ((GroupEnd{.cause = GroupEnd::Cause::kInterrupted, .signal = SIGTERM}.exit_code()), 128 + SIGTERM);
  EXPECT_EQ((GroupEnd{.cause = GroupEnd::Cause::kAborted, .text = "why", .code = 3}.exit_code()), 3);
}

}  // namespace
}  // namespace narrowcast::launcher
