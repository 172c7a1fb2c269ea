// New processes that do not fit the ranks of an ElasticRun.
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/ranks.h"
#include "tests/trainer/ddp/recovery/elastic_ranks.h"

namespace narrowcast::recovery {
namespace {

using ::testing::HasSubstr;
using testing::run_ranks;

// The error that a rank's take_steps throws, after the others have worked together.
std::vector<std::string> errors_with_new_rank(const Case& value, std::unique_ptr<Rank> new_one) {
  Ranks ranks = new_ranks(value);
  for (auto& rank : ranks) rank->program.failure = {4, Place::kForward};
  run_all(ranks, Outcome::kLoss);
  for (auto& rank : ranks) rank->program.failure = {};
  ranks[2] = std::move(new_one);
  std::vector<std::string> errors(static_cast<size_t>(kRanks));
  run_ranks(kRanks, [&](int64_t rank, const ProcessGroupPtr& group) {
    try {
      ranks[rank]->run.take_steps(group, {});
    } catch (const c10::DistBackendError& error) {
      errors[rank] = std::string("lost: ") + error.what_without_backtrace();
    } catch (const c10::ValueError& error) {
      errors[rank] = std::string("error: ") + error.what_without_backtrace();
    }
    EXPECT_EQ(ranks[rank]->run.is_misfit(), rank == 2);
  });
  for (int64_t rank = 0; rank < 2; ++rank) EXPECT_EQ(ranks[rank]->run.step(), 4) << "it has its state";
  ranks[2] = new_rank(value);
  recover(ranks);
  for (auto& rank : ranks) expect_equal(rank->program.result(), undisturbed(value));
  return errors;
}

TEST(ElasticRun, ANewRankWithAnotherStateEndsAlone) {
  const std::vector<std::string> errors = errors_with_new_rank({"none"}, new_rank({"buffers", "none", true, true}));
  for (const size_t rank : {0, 1}) {
    EXPECT_EQ(errors[rank], c10::str("lost: rank ", rank, ": rank 2 is new, and has another state"));
  }
  EXPECT_THAT(errors[2], HasSubstr("error: state 'net.1.bias': this new process has 'Float [6]', the ranks of the job "
                                   "have 'Float [1]'"));
}

// All ranks notice it when they make what the steps use.
TEST(ElasticRun, ANewRankThatMakesSomethingElseEndsAlone) {
  const std::vector<std::string> errors = errors_with_new_rank({"none"}, new_rank({"int8", "int8"}));
  for (const size_t rank : {0, 1}) {
    EXPECT_THAT(errors[rank], HasSubstr(c10::str("lost: rank ", rank, ": with rank 2, which are new: ")));
  }
  EXPECT_THAT(errors[2], HasSubstr("error: "));
}

TEST(ElasticRun, RanksThatAreAllNewFailTogether) {
  Ranks ranks = new_ranks({"none"});
  ranks[2] = new_rank({"int8", "int8"});
  run_ranks(kRanks, [&](int64_t rank, const ProcessGroupPtr& group) {
    EXPECT_THROW(ranks[rank]->run.take_steps(group, {}), c10::ValueError);
    EXPECT_FALSE(ranks[rank]->run.is_misfit());
  });
}

}  // namespace
}  // namespace narrowcast::recovery
