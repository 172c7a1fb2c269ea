#include "trainer/ddp/recovery/attempts.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <iterator>
#include <vector>

namespace narrowcast::recovery {
namespace {

using ::testing::ElementsAre;

// Attempts of a rank that joined the others.
class Attempts {
 public:
  // The attempt with that number, from 1, or one before it, loses another rank.
  Work losing(int64_t losses) {
    return {.attempt =
                [this, losses](Attempt& attempt) {
                  begin(attempt);
                  TORCH_CHECK_WITH(DistBackendError, count() > losses, "rank 0: rank 1 is lost");
                  return AttemptEnd::kDone;
                },
            .step = [this] { return step; }};
  }

  void begin(Attempt& attempt) {
    attempt.has_joined = true;
    restart_counts.push_back(attempt.env.restart_count);
    are_first.push_back(!attempt.interrupted_at.has_value());
  }

  int64_t count() const { return std::ssize(restart_counts); }

  std::vector<int64_t> restart_counts = {};
  std::vector<bool> are_first = {};
  int64_t step = -1;  // whose state the rank has
};

WorkerEnv restarted_once() {
  WorkerEnv env;
  env.restart_count = 1;
  return env;
}

TEST(WorkUntilNothingIsLost, TriesAgainWithTheNextRestartCount) {
  Attempts attempts;
  work_until_nothing_is_lost(restarted_once(), attempts.losing(2));
  EXPECT_THAT(attempts.restart_counts, ElementsAre(1, 2, 3));
  EXPECT_THAT(attempts.are_first, ElementsAre(true, false, false));
}

TEST(WorkUntilNothingIsLost, RegroupsAsOftenAsTheRanksAgreeTo) {
  Attempts attempts;
  work_until_nothing_is_lost({}, {.attempt =
                                      [&](Attempt& attempt) {
                                        attempts.begin(attempt);
                                        return attempts.count() > 3 * kMostFruitless ? AttemptEnd::kDone
                                                                                     : AttemptEnd::kRegroup;
                                      },
                                  .step = [] { return 0; }});
  EXPECT_EQ(attempts.restart_counts.back(), 3 * kMostFruitless);
  EXPECT_FALSE(attempts.are_first.back());
}

TEST(WorkUntilNothingIsLost, LossesWithoutAStepInBetweenEnd) {
  Attempts attempts;
  EXPECT_THROW(work_until_nothing_is_lost({}, attempts.losing(1000)), c10::DistBackendError);
  EXPECT_EQ(attempts.count(), kMostFruitless) << "the last of so many losses";
  Attempts with_steps;
  Work work = with_steps.losing(3 * kMostFruitless);
  work.step = [&] { return ++with_steps.step; };
  work_until_nothing_is_lost({}, work);
  EXPECT_EQ(with_steps.count(), 3 * kMostFruitless + 1);
}

TEST(WorkUntilNothingIsLost, GivesUpIfTheWorkDoes) {
  Attempts attempts;
  Work work = attempts.losing(1000);
  work.gives_up = [&] { return attempts.count() == 2; };
  EXPECT_THROW(work_until_nothing_is_lost({}, work), c10::DistBackendError);
  EXPECT_EQ(attempts.count(), 2);
}

// The ranks have not met, another rank hangs, or it is no loss.
TEST(WorkUntilNothingIsLost, OtherErrorsEndAtOnce) {
  Attempts attempts;
  const auto failing = [&](const std::function<void(Attempt&)>& fail) {
    return Work{.attempt =
                    [&attempts, fail](Attempt& attempt) {
                      attempts.begin(attempt);
                      fail(attempt);
                      return AttemptEnd::kDone;
                    },
                .step = [] { return 0; }};
  };
  EXPECT_THROW(work_until_nothing_is_lost({}, failing([](Attempt& attempt) {
                                            attempt.has_joined = false;
                                            TORCH_CHECK_WITH(DistBackendError, false, "rank 0: rank 1 did not join");
                                          })),
               c10::DistBackendError);
  EXPECT_THROW(work_until_nothing_is_lost(
                   {}, failing([](Attempt&) { TORCH_CHECK_WITH(DistBackendError, false, "rank 0: timed out"); })),
               c10::DistBackendError);
  EXPECT_THROW(work_until_nothing_is_lost({}, failing([](Attempt&) { TORCH_CHECK_VALUE(false, "steps: is 0"); })),
               c10::ValueError);
  EXPECT_EQ(attempts.count(), 3);
}

}  // namespace
}  // namespace narrowcast::recovery
