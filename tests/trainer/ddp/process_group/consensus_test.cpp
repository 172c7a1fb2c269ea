#include <narrowcast/consensus.h>

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <limits>
#include <string>
#include <vector>

#include "ops/common/libtorch_versions.h"
#include "tests/support/error_message.h"
#include "tests/support/ranks.h"

namespace narrowcast {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Eq;
using testing::error_message;
using testing::fork_ranks;
using ::testing::HasSubstr;
using ::testing::Lt;
using testing::run_ranks;
using ::testing::SizeIs;

class ConsensusTest : public ::testing::TestWithParam<int64_t> {};

TEST_P(ConsensusTest, SumsAndMaximaAreElementwise) {
  const int64_t world_size = GetParam();
  run_ranks(world_size, [&](int64_t rank, const ProcessGroupPtr& group) {
    const double value = static_cast<double>(rank);
    const double last = static_cast<double>(world_size - 1);
    EXPECT_THAT(all_reduce_sum(group, {value, 1.0}),
                ElementsAre(last * (last + 1) / 2, static_cast<double>(world_size)));
    EXPECT_THAT(all_reduce_max(group, {value, -value}), ElementsAre(last, 0.0));
  });
}

TEST_P(ConsensusTest, IntegersUpTo53BitsAreExact) {
  run_ranks(GetParam(), [&](int64_t rank, const ProcessGroupPtr& group) {
    const double big = 9007199254740992.0;  // 2^53
    EXPECT_THAT(all_reduce_sum(group, {rank == 0 ? big : 0.0}), ElementsAre(big));
  });
}

TEST_P(ConsensusTest, TextsOfAnyLengthComeByRank) {
  const int64_t world_size = GetParam();
  run_ranks(world_size, [&](int64_t rank, const ProcessGroupPtr& group) {
    const auto text_of = [](int64_t r) {
      return std::string(static_cast<size_t>(r * 100), static_cast<char>('a' + r));
    };
    const std::vector<std::string> texts = all_gather_text(group, text_of(rank));
    ASSERT_EQ(static_cast<int64_t>(texts.size()), world_size);
    for (int64_t r = 0; r < world_size; ++r) {
      EXPECT_EQ(texts[r], text_of(r));
    }
  });
}

TEST_P(ConsensusTest, EqualListsPass) {
  run_ranks(GetParam(), [&](int64_t /*rank*/, const ProcessGroupPtr& group) {
    EXPECT_NO_THROW(check_equal_on_all_ranks(group, {}));
    EXPECT_NO_THROW(check_equal_on_all_ranks(group, {{"hook", "int8"}, {"steps", "3"}}));
  });
}

TEST_P(ConsensusTest, ABarrierHoldsUntilAllHaveCome) {
  std::atomic<int64_t> arrived = 0;
  run_ranks(GetParam(), [&](int64_t /*rank*/, const ProcessGroupPtr& group) {
    ++arrived;
    barrier(group, "test");
    EXPECT_EQ(arrived, GetParam());
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, ConsensusTest, ::testing::Values(1, 2, 3, 4, 5, 8));

// The error of each of three ranks when they pass these lists.
void expect_difference(const std::vector<std::vector<NamedValue>>& lists, const std::string& message) {
  run_ranks(static_cast<int64_t>(lists.size()), [&](int64_t rank, const ProcessGroupPtr& group) {
    try {
      check_equal_on_all_ranks(group, lists[rank]);
      ADD_FAILURE() << "rank " << rank << " threw nothing";
    } catch (const c10::ValueError& error) {
      EXPECT_THAT(error.what_without_backtrace(), Eq(message)) << "rank " << rank;
    }
  });
}

TEST(ConsensusDifferenceTest, NamesRanksAndValuesOfTheFirstDifference) {
  expect_difference({{{"model", "mlp"}, {"batch", "8"}, {"steps", "1"}},
                     {{"model", "mlp"}, {"batch", "16"}, {"steps", "2"}},
                     {{"model", "mlp"}, {"batch", "16"}, {"steps", "1"}}},
                    "batch differs between ranks: rank 0 has 8, rank 1 has 16");
}

TEST(ConsensusDifferenceTest, ShowsValuesOnOneLineAndNotEndless) {
  run_ranks(2, [&](int64_t rank, const ProcessGroupPtr& group) {
    try {
      check_equal_on_all_ranks(group, {{"data", rank == 0 ? "a\n\x1b[2J" : std::string(100'000, 'x')}});
      ADD_FAILURE() << "nothing was thrown";
    } catch (const c10::ValueError& error) {
      EXPECT_THAT(error.what_without_backtrace(), HasSubstr("rank 0 has a\\n\\x1b[2J, rank 1 has xxx"));
      EXPECT_LE(std::string(error.what_without_backtrace()).size(), 500u);
    }
  });
}

// The messages of a peer are from another function.
TEST(ConsensusPeersTest, LengthsThatCannotBeAreABackendErrorThatNamesTheRank) {
  for (const int64_t length : {int64_t{-1}, (int64_t{64} << 20) + 1, std::numeric_limits<int64_t>::max()}) {
    run_ranks(2, [&](int64_t rank, const ProcessGroupPtr& group) {
      if (rank == 1) {
        at::Tensor input = at::full({1}, length, at::kLong);
        at::Tensor output = at::empty({2}, at::kLong);
        libtorch::all_gather_single(group, output, input)->wait();
        return;
      }
      EXPECT_EQ(error_message<c10::DistBackendError>([&] { all_gather_text(group, "text"); }),
                "rank 1 announced a text of " + std::to_string(length) + " bytes, where at most 67108864 are taken");
    });
  }
}

TEST(ConsensusPeersTest, SomethingOtherThanAListIsABackendErrorThatNamesTheRank) {
  for (const std::string& text : {std::string("7"), std::string("[[1,2]]"), std::string("[[\"a\"]]"),
                                  std::string("\x1b"), std::string(60'000, '[')}) {
    run_ranks(2, [&](int64_t rank, const ProcessGroupPtr& group) {
      if (rank == 1) {
        at::Tensor input = at::full({1}, 12345, at::kLong);
        at::Tensor output = at::empty({2}, at::kLong);
        libtorch::all_gather_single(group, output, input)->wait();
        all_gather_text(group, text);
        return;
      }
      EXPECT_THAT(
          error_message<c10::DistBackendError>([&] {
            check_equal_on_all_ranks(group, {{"a", "1"}});
          }),
          AllOf(HasSubstr("rank 0: comparing values failed: rank 1 sent a message that is not an announcement; "),
                SizeIs(Lt(300))));
    });
  }
}

TEST(ConsensusDifferenceTest, TakesBytesThatAreNotText) {
  const std::string bytes = "\xff\xfe";
  run_ranks(2, [&](int64_t rank, const ProcessGroupPtr& group) {
    EXPECT_NO_THROW(check_equal_on_all_ranks(group, {{"path", bytes}}));
    EXPECT_THROW(check_equal_on_all_ranks(group, {{"path", rank == 0 ? bytes : "x"}}), c10::ValueError);
  });
}

// A rank dies. The errors of the others name their failed step.
TEST(ConsensusDeathTest, ALostPeerIsABackendErrorThatNamesRankAndStep) {
  const std::vector<int> codes = fork_ranks(2, [](int64_t rank, const ProcessGroupPtr& group) {
    barrier(group, "start");
    if (rank == 1) ::_exit(9);
    try {
      barrier(group, "waiting for rank 1");
      ADD_FAILURE() << "the barrier held";
    } catch (const c10::DistBackendError& error) {
      EXPECT_THAT(error.what_without_backtrace(), HasSubstr("rank 0: waiting for rank 1 failed: "));
    }
  });
  EXPECT_THAT(codes, ElementsAre(testing::kRankPassed, 9));
}

}  // namespace
}  // namespace narrowcast
