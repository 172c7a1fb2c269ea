#include "trainer/process_group/consensus.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <vector>

#include "tests/support/ranks.h"

namespace narrowcast {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Eq;
using testing::fork_ranks;
using ::testing::HasSubstr;
using testing::run_ranks;
using namespace std::chrono_literals;

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

// What each of three ranks is told when they pass these lists.
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
                    "batch differs between ranks: rank 0 has 8, ranks 1, 2 have 16");
}

TEST(ConsensusDifferenceTest, NamesAnEntryThatIsMissing) {
  expect_difference({{{"a", "1"}}, {{"a", "1"}, {"b", "2"}}, {{"a", "1"}}},
                    "b differs between ranks: ranks 0, 2 have nothing, rank 1 has 2");
  expect_difference({{{"a", "1"}, {"b", "2"}}, {{"a", "1"}}, {}},
                    "a differs between ranks: ranks 0, 1 have 1, rank 2 has nothing");
}

TEST(ConsensusDifferenceTest, NamesAnEntryOfAnotherName) {
  expect_difference({{{"a", "1"}}, {{"c", "1"}}, {{"a", "1"}}},
                    "a differs between ranks: ranks 0, 2 have 1, rank 1 has c 1");
}

TEST(ConsensusDifferenceTest, TakesBytesThatAreNotText) {
  const std::string bytes = "\xff\xfe";
  run_ranks(2, [&](int64_t rank, const ProcessGroupPtr& group) {
    EXPECT_NO_THROW(check_equal_on_all_ranks(group, {{"path", bytes}}));
    EXPECT_THROW(check_equal_on_all_ranks(group, {{"path", rank == 0 ? bytes : "x"}}), c10::ValueError);
  });
}

// A rank dies; the others are told which step of theirs failed.
TEST(ConsensusDeathTest, ALostPeerIsABackendErrorThatNamesRankAndStep) {
  const std::vector<int> codes =
      fork_ranks(2,
                 [](int64_t rank, const ProcessGroupPtr& group) {
                   barrier(group, "start");
                   if (rank == 1) ::_exit(9);
                   try {
                     barrier(group, "waiting for rank 1");
                     ADD_FAILURE() << "the barrier held";
                   } catch (const c10::DistBackendError& error) {
                     EXPECT_THAT(error.what_without_backtrace(), HasSubstr("rank 0: waiting for rank 1 failed: "));
                   }
                 },
                 {.timeout = 10s});
  EXPECT_THAT(codes, ElementsAre(testing::kRankPassed, 9));
}

}  // namespace
}  // namespace narrowcast
