#include "trainer/ddp/recovery/stop_agreement.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <stdexcept>
#include <vector>

#include "tests/support/error_message.h"
#include "tests/support/ranks.h"

namespace narrowcast::recovery {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using testing::run_ranks;
using testing::wait_for_ranks;

// The step after which a rank stopped, and the signal.
struct Stop {
  int64_t step = 0;
  int signal = 0;
  bool operator==(const Stop&) const = default;
};
void PrintTo(const Stop& stop, std::ostream* out) { *out << stop.signal << " after step " << stop.step; }

// The signal that a rank gets in a step; 0: none.
using Sent = std::function<int(int64_t rank, int64_t step)>;

// Takes steps of no duration, until all ranks stop or have taken `steps`.
std::vector<Stop> stops_of(int64_t world_size, int64_t steps, const Sent& sent) {
  std::vector<Stop> stops(static_cast<size_t>(world_size));
  run_ranks(world_size, [&](int64_t rank, const ProcessGroupPtr& group) {
    Stop& stop = stops[rank];
    StopAgreement agreement(group, [&] { return sent(rank, stop.step); });
    stop.signal = agreement.before_first_step();
    while (stop.signal == 0 && stop.step < steps) {
      ++stop.step;
      stop.signal = agreement.after_step();
    }
    agreement.finish();
    wait_for_ranks(group);  // Collectives are still in the same order on all ranks.
  });
  return stops;
}

TEST(NextInterval, IsHalfASecondOfSteps) {
  EXPECT_EQ(next_interval(64, 0.01), 50);
  EXPECT_EQ(next_interval(64, 0.5), 1);
  EXPECT_EQ(next_interval(64, 20), 1) << "never less than a step";
  EXPECT_EQ(next_interval(1, 0.001), 2) << "grows slowly: the first steps may be faster than those after them";
  EXPECT_EQ(next_interval(2, 0), 4);
  EXPECT_EQ(next_interval(4096, 1e-9), 4096);
}

class StopAgreementWorldTest : public ::testing::TestWithParam<int64_t> {};

// Steps of no duration double the interval. A signal in step s is part of a round in step 2 s at the latest, which is
// read by step 4 s.
TEST_P(StopAgreementWorldTest, AllRanksStopAfterTheSameStepWhicheverIsAsked) {
  for (int64_t asked = 0; asked < GetParam(); ++asked) {
    for (const int64_t step : {1, 2, 3, 7, 40}) {
      const auto stops = stops_of(
          GetParam(), 1000, [&](int64_t rank, int64_t done) { return rank == asked && done >= step ? SIGTERM : 0; });
      EXPECT_THAT(stops, Each(stops[0])) << "rank " << asked << " is asked in step " << step;
      EXPECT_EQ(stops[0].signal, SIGTERM);
      EXPECT_GE(stops[0].step, step);
      EXPECT_LE(stops[0].step, 4 * step);
    }
  }
}

TEST_P(StopAgreementWorldTest, ASignalBeforeTheFirstStepStopsAllRanksThere) {
  const auto stops =
      stops_of(GetParam(), 1000, [&](int64_t rank, int64_t /*step*/) { return rank == GetParam() - 1 ? SIGUSR1 : 0; });
  EXPECT_THAT(stops, Each(Stop{.step = 0, .signal = SIGUSR1}));
}

TEST_P(StopAgreementWorldTest, TheGreatestOfSeveralSignalsCounts) {
  const auto stops = stops_of(GetParam(), 1000, [&](int64_t rank, int64_t step) {
    return step < 5 ? 0 : rank == 0 ? SIGTERM : SIGUSR1;
  });
  EXPECT_THAT(stops, Each(Stop{.step = stops[0].step, .signal = SIGTERM}));
}

// Also if the last round is under way when the training ends.
TEST_P(StopAgreementWorldTest, RanksThatNobodyAsksTakeAllSteps) {
  for (const int64_t steps : {1, 2, 3, 100}) {
    EXPECT_THAT(stops_of(GetParam(), steps, [](int64_t, int64_t) { return 0; }), Each(Stop{.step = steps}));
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, StopAgreementWorldTest, ::testing::Values(1, 2, 3, 4));

// The interval has grown in single steps, and a round of them is in progress.
TEST(StopAgreement, AMeetingLearnsOfASignalAtOnce) {
  run_ranks(3, [&](int64_t rank, const ProcessGroupPtr& group) {
    bool is_asked = false;
    StopAgreement agreement(group, [&] { return is_asked ? SIGTERM : 0; });
    EXPECT_EQ(agreement.before_first_step(), 0);
    for (int64_t step = 0; step < 40; ++step) EXPECT_EQ(agreement.after_step(), 0);
    ASSERT_GE(agreement.interval(), 8);
    EXPECT_EQ(agreement.at_meeting(), 0);
    is_asked = rank == 1;
    EXPECT_EQ(agreement.at_meeting(), SIGTERM);
    agreement.finish();
  });
}

TEST(StopAgreement, SendsNothingWhereNothingAsks) {
  run_ranks(2, [&](int64_t rank, const ProcessGroupPtr& group) {
    if (rank == 0) {  // The other rank does not take part.
      StopAgreement agreement(group, nullptr);
      EXPECT_EQ(agreement.before_first_step(), 0);
      EXPECT_EQ(agreement.after_step(), 0);
      EXPECT_EQ(agreement.after_step(), 0);
    }
    wait_for_ranks(group);
  });
}

TEST(StopAgreement, NamesTheRankWhosePeerFailed) {
  std::string message;
  const auto run = [&] {
    run_ranks(2, [&](int64_t rank, const ProcessGroupPtr& group) {
      StopAgreement agreement(group, [] { return 0; });
      agreement.before_first_step();
      if (rank == 1) {
        throw std::runtime_error("gone");
      }
      message = testing::error_message<c10::DistBackendError>([&] {
        for (;;) agreement.after_step();
      });
    });
  };
  EXPECT_THROW(run(), std::runtime_error);
  EXPECT_THAT(message, HasSubstr("rank 0: agreement whether to stop failed"));
}

}  // namespace
}  // namespace narrowcast::recovery
