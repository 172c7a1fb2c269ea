#include "trainer/train/training/training_options.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/support/error_message.h"

namespace narrowcast::training {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Pair;

std::string complaint(const TrainingOptions& options, int64_t world_size) {
  return testing::error_message<c10::ValueError>([&] { check_training_options(options, world_size); });
}

TEST(CheckTrainingOptions, NamesTheOptionAndTheValue) {
  TrainingOptions options;
  options.batch_size = 12;
  EXPECT_EQ(complaint(options, 4), "nothing was thrown");
  EXPECT_THAT(complaint(options, 5), HasSubstr("batch_size: must be divisible by ranks * accumulation_steps (5 * 1)"));
  EXPECT_THAT(complaint(options, 5), EndsWith("is 12; possible: 4 or 6 ranks, or batch_size 10 or 15"));
  options.accumulation_steps = 5;
  EXPECT_THAT(complaint(options, 1), EndsWith("is 12; possible: batch_size 10 or 15"));
  options.accumulation_steps = 1;
  options.batch_size = 2;
  EXPECT_THAT(complaint(options, 7), EndsWith("is 2; possible: 2 ranks, or batch_size 7"));
  options.batch_size = 12;
  const auto with = [&](auto change) {
    TrainingOptions changed = options;
    change(changed);
    return complaint(changed, 2);
  };
  EXPECT_THAT(with([](auto& o) { o.accumulation_steps = 4; }), HasSubstr("(2 * 4), but is 12"));
  EXPECT_THAT(with([](auto& o) { o.early_stop = 1; }), HasSubstr("early_stop: needs eval_every"));
  EXPECT_THAT(with([](auto& o) { o.shard_copies = 2; }),
              HasSubstr("shard_copies: 2 needs shard_optimizer node or all, but it is off"));
  EXPECT_THAT(with([](auto& o) {
                o.optimizer_shards = OptimizerShards::kAll;
                o.parameter_format = WireFormat::kTop2P15;
              }),
              HasSubstr("parameter_format: top2_15 would send most parameters only after many steps"));
  EXPECT_THAT(with([](auto& o) { o.learning_rate.peak = -1; }), HasSubstr("learning_rate"));
}

TEST(CheckTrainingOptions, TakesSharesThatAddUpToTheBatch) {
  TrainingOptions options;
  options.batch_size = 13;
  options.shares = data::parse_shares("9,4");
  EXPECT_EQ(complaint(options, 2), "nothing was thrown") << "the batch need not be divisible";
  EXPECT_EQ(complaint(options, 3), "shares: must have a number for each of the 3 ranks, but has 2: 9,4");
  options.batch_size = 12;
  EXPECT_EQ(complaint(options, 2), "shares: must add up to batch_size, which is 12, but add up to more: 9,4");
  options.shares = data::parse_shares("auto");
  EXPECT_EQ(complaint(options, 2), "nothing was thrown");
  options.shares_with_batch_norm = true;
  EXPECT_EQ(complaint(options, 2), "nothing was thrown");
  options.shares = {};
  EXPECT_EQ(complaint(options, 2), "shares_with_batch_norm: has no effect with equal shares");
  options.shares_with_batch_norm = false;
  options.shares = data::parse_shares("auto");
  EXPECT_THAT(complaint(options, 5), HasSubstr("batch_size: must be divisible")) << "they begin with equal parts";
}

TEST(CheckAutoShares, RefusesWhatCannotChange) {
  TrainingOptions options;
  options.batch_size = 12;
  options.accumulation_steps = 3;
  const auto refusal = [&](int64_t ranks) {
    return testing::error_message<c10::ValueError>([&] { check_auto_shares(options, ranks); });
  };
  EXPECT_EQ(refusal(1), "nothing was thrown") << "equal shares";
  options.shares = data::parse_shares("auto");
  EXPECT_EQ(refusal(1), "shares: auto needs several ranks, but there is one");
  EXPECT_EQ(refusal(2), "nothing was thrown");
  EXPECT_THAT(refusal(4), HasSubstr("shares: auto has no effect, because 4 ranks have one sample each in a pass"));
}

TEST(SizesOfPasses, AreTheLeastAndTheMostOfAllRanks) {
  TrainingOptions options;
  options.batch_size = 24;
  options.accumulation_steps = 2;
  EXPECT_THAT(sizes_of_passes(options, 4), Pair(int64_t{3}, int64_t{3}));
  options.shares = data::parse_shares("11,5,5,3");
  EXPECT_THAT(sizes_of_passes(options, 4), Pair(int64_t{1}, int64_t{6}));
  options.shares = data::parse_shares("auto");
  EXPECT_THAT(sizes_of_passes(options, 4), Pair(int64_t{1}, int64_t{9}))
      << "the other ranks keep one sample in each pass";
}

TEST(PossibleRanks, AreTheMostThatShareTheBatch) {
  TrainingOptions options;
  options.batch_size = 36;
  options.accumulation_steps = 2;
  EXPECT_EQ(divided_by_ranks(options), 18);
  EXPECT_EQ(possible_ranks(options, 8), 6);
  EXPECT_EQ(possible_ranks(options, 6), 6);
  EXPECT_EQ(possible_ranks(options, 100), 18);
  EXPECT_EQ(possible_ranks(options, 0), 0);
  options.accumulation_steps = 5;
  EXPECT_EQ(possible_ranks(options, 8), 0);
  options.accumulation_steps = 0;
  EXPECT_EQ(possible_ranks(options, 8), 0);
}

}  // namespace
}  // namespace narrowcast::training
