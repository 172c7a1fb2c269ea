#include "trainer/ddp/process_group/first_failure.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include <narrowcast/errors.h>
#include "tests/support/error_message.h"
#include "tests/support/ranks.h"

namespace narrowcast {
namespace {

using testing::run_ranks;

TEST(FirstFailure, IsTheSameOnAllRanks) {
  run_ranks(3, [](int64_t rank, const ProcessGroupPtr& group) {
    EXPECT_EQ(first_failure(group, [] {}), "");
    EXPECT_EQ(first_failure(group, [&] { TORCH_CHECK_VALUE(rank == 0, "wrong on ", rank); }), "rank 1: wrong on 1");
    EXPECT_EQ(first_failure(group, [&] { NARROWCAST_CHECK_INPUT(rank != 2, "corrupt"); }), "rank 2: corrupt");
    EXPECT_EQ(first_failure(group, [&] { NARROWCAST_CHECK_OUTPUT(rank != 0, "disk full"); }), "rank 0: disk full");
  });
}

TEST(FirstFailure, OfOneRankNamesNoRankAndLetsBugsPass) {
  run_ranks(1, [](int64_t, const ProcessGroupPtr& group) {
    EXPECT_EQ(first_failure(group, [] { TORCH_CHECK_VALUE(false, "wrong"); }), "wrong");
    EXPECT_THROW(first_failure(group, [] { throw std::logic_error("bug"); }), std::logic_error);
  });
}

TEST(DoOnAllRanks, ThrowsOnAllRanksWhatTheFirstThatFailedThrew) {
  run_ranks(3, [](int64_t rank, const ProcessGroupPtr& group) {
    EXPECT_NO_THROW(do_on_all_ranks(group, "run: ", [] {}));
    const auto use_and_disk = [&] {
      TORCH_CHECK_VALUE(rank != 1, "wrong");
      NARROWCAST_CHECK_OUTPUT(rank != 2, "disk full");
    };
    EXPECT_EQ(testing::error_message<c10::ValueError>([&] { do_on_all_ranks(group, "run: ", use_and_disk); }),
              "run: rank 1: wrong");
    const auto disk = [&] { NARROWCAST_CHECK_OUTPUT(rank != 2, "disk full"); };
    EXPECT_EQ(testing::error_message<OutputError>([&] { do_on_all_ranks(group, "run: ", disk); }),
              "run: rank 2: disk full");
  });
}

TEST(FromRank0, GivesItsText) {
  run_ranks(3, [](int64_t rank, const ProcessGroupPtr& group) {
    EXPECT_EQ(from_rank_0(group, "text of " + std::to_string(rank)), "text of 0");
  });
}

}  // namespace
}  // namespace narrowcast
