#include "hooks/quantized/error_feedback.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <narrowcast/errors.h>
#include <narrowcast/wire_format.h>
#include "ops/collectives/all_reduce/algorithms/two_levels.h"
#include "ops/collectives/all_reduce/array/element_order.h"
#include "ops/collectives/all_reduce/array/element_range.h"
#include "ops/collectives/all_reduce/codec/codec.h"
#include "tests/hooks/all/parameters_bucket.h"
#include "tests/support/error_message.h"

namespace narrowcast::hooks {
namespace {

using collectives::ElementOrder;
using collectives::ElementRange;
using collectives::Residuals;
using collectives::shard_of;
using node::NodeLayout;
using testing::error_message;
using ::testing::HasSubstr;

// Two ranks; this is the second one, whose shard is the second half.
constexpr int64_t kRank = 1;
constexpr int64_t kFeedbackRanks = 2;
constexpr int64_t kFeedbackNumel = 2048;

class ErrorFeedbackTest : public ::testing::Test {
 protected:
  Residuals residuals(const std::vector<at::Tensor>& parameters, size_t index = 0, size_t count = 1) {
    const auto bucket = make_parameters_bucket(parameters, parameters, index, count);
    return feedback_->residuals(bucket, parameter_ranges(bucket));
  }
  std::optional<ErrorFeedback> feedback_{std::in_place, kRank, NodeLayout::flat(kFeedbackRanks), WireFormat::kInt4B32};
  const at::Tensor a_ = at::zeros({2, kFeedbackNumel / 2});
  const at::Tensor b_ = at::zeros({2, kFeedbackNumel / 2});
};

TEST_F(ErrorFeedbackTest, BeginsWithZerosAndKeepsItsPlace) {
  const Residuals first = residuals({a_, b_});
  for (int64_t i = 0; i < 2 * kFeedbackNumel; ++i) ASSERT_EQ(first.own[i], 0);
  for (int64_t i = 0; i < shard_of(kRank, kFeedbackRanks, 2 * kFeedbackNumel).numel; ++i) ASSERT_EQ(first.mean[i], 0);
  first.own[7] = 1;
  first.mean[9] = 2;
  const Residuals second = residuals({a_, b_});
  EXPECT_EQ(second.own, first.own);
  EXPECT_EQ(second.mean, first.mean);
  EXPECT_EQ(second.own[7], 1);
  EXPECT_EQ(second.mean[9], 2);
}

TEST_F(ErrorFeedbackTest, GoesWithItsParameterIntoARebuiltBucket) {
  const Residuals first = residuals({a_, b_});
  first.own[3] = 5;                   // a_[3]
  first.own[kFeedbackNumel + 4] = 6;  // b_[4]
  first.mean[11] = 0.5;               // b_[11]: the shard is the second half.
  const Residuals second = residuals({b_, a_});
  EXPECT_EQ(second.own[kFeedbackNumel + 3], 5);
  EXPECT_EQ(second.own[4], 6);
  EXPECT_EQ(second.own[11], 1) << "0.5 missing in a mean of two ranks is 1 missing in one rank's part";
  for (int64_t i = 0; i < kFeedbackNumel; ++i) ASSERT_EQ(second.mean[i], 0);
}

TEST_F(ErrorFeedbackTest, GoesFromOneBucketIntoTwoAndBack) {
  residuals({a_, b_}).own[kFeedbackNumel + 1] = 8;  // b_[1]
  residuals({a_}, 0, 2);
  const Residuals b = residuals({b_}, 1, 2);
  EXPECT_EQ(b.own[1], 8);
  b.own[2] = 9;
  const Residuals both = residuals({b_, a_});
  EXPECT_EQ(both.own[1], 8);
  EXPECT_EQ(both.own[2], 9);
}

// As if another hook first took bucket 0, and then the buckets were rebuilt.
TEST_F(ErrorFeedbackTest, LeavesABucketThatIsNoMore) {
  const Residuals first = residuals({a_, b_}, 1, 2);
  first.own[3] = 5;  // a_[3]
  first.own[kFeedbackNumel + 4] = 6;
  EXPECT_EQ(residuals({a_}, 0, 2).own[3], 5);
  EXPECT_EQ(residuals({b_}, 1, 2).own[4], 6);
  const HookState state = feedback_->state({{"a", a_}, {"b", b_}});
  EXPECT_EQ(state.at("place.a")[0].item<int64_t>(), 0);
}

TEST_F(ErrorFeedbackTest, LeavesBucketsAloneThatAreOnTheirWay) {
  const at::Tensor c = at::zeros({4});
  const Residuals first = residuals({a_}, 0, 2);
  residuals({b_}, 1, 2).own[0] = 3;
  EXPECT_EQ(residuals({a_}, 0, 2).own, first.own);
  const Residuals rebuilt = residuals({c, b_}, 1, 2);
  EXPECT_EQ(residuals({a_}, 0, 2).own, first.own);
  EXPECT_EQ(rebuilt.own[4], 3);
}

// With two levels, another rank may send the element now.
TEST_F(ErrorFeedbackTest, IsCarriedOverUntilItHasArrived) {
  feedback_.emplace(kRank, NodeLayout::of_size(kFeedbackRanks, 2), WireFormat::kInt4B32);
  residuals({a_, b_}).own[4] = 8;  // b_[4]: the own range is the second half.
  const Residuals rebuilt = residuals({b_, a_});
  ASSERT_TRUE(rebuilt.carried.defined());
  EXPECT_EQ(rebuilt.carried[4].item<float>(), 16) << "lacking in the node's mean of two ranks";
  EXPECT_EQ(rebuilt.carried.count_nonzero().item<int64_t>(), 1);
  const Residuals again = residuals({b_, a_});  // The mean was not finite there, so the exchange has kept it.
  ASSERT_TRUE(again.carried.defined());
  EXPECT_EQ(again.carried[4].item<float>(), 16);
  again.carried.zero_();
  EXPECT_FALSE(residuals({b_, a_}).carried.defined());
}

// A checkpoint with a residual that is still carried.
TEST_F(ErrorFeedbackTest, IsCarriedOverARestart) {
  const NodeLayout one_node = NodeLayout::of_size(kFeedbackRanks, 2);
  const std::vector<NamedParameter> parameters = {{"a", a_}, {"b", b_}};
  feedback_.emplace(kRank, one_node, WireFormat::kInt4B32);
  residuals({a_, b_}).own[4] = 8;
  residuals({b_, a_}).own[5] = 3;  // a_[5]; b_[4] is carried.
  HookState state = feedback_->state(parameters);
  for (auto& [name, tensor] : state) tensor = tensor.clone();
  for (const NodeLayout& layout : {one_node, NodeLayout::flat(kFeedbackRanks)}) {
    feedback_.emplace(kRank, layout, WireFormat::kInt4B32);
    feedback_->load_state({.world_size = kFeedbackRanks, .states = {state}, .first = {}}, parameters);
    const Residuals resumed = residuals({b_, a_});
    if (layout == one_node) {
      ASSERT_TRUE(resumed.carried.defined());
      EXPECT_EQ(resumed.carried[4].item<float>(), 16);
      EXPECT_EQ(resumed.own[5], 3);
    } else {
      EXPECT_EQ(resumed.own[4], 16) << "of both ranks";
    }
  }
}

TEST_F(ErrorFeedbackTest, BelongsToTheIndexOfABucketWithoutParameters) {
  const c10d::GradBucket bucket(0, 1, at::zeros({10}), {}, {}, {}, {}, std::nullopt);
  feedback_->residuals(bucket, {}).own[5] = 1;
  EXPECT_EQ(feedback_->residuals(bucket, {}).own[5], 1);
}

constexpr int64_t kParameterNumel = 3000;  // Elements of each of three parameters; shards end within them.

// Formats whose messages hold consecutive elements, and formats for which buckets are reordered.
class ErrorFeedbackStateTest : public ::testing::TestWithParam<WireFormat> {
 protected:
  ErrorFeedback of_rank(int64_t rank, const NodeLayout& layout) const { return {rank, layout, GetParam()}; }
  ErrorFeedback of_rank(int64_t rank, int64_t ranks) const { return of_rank(rank, NodeLayout::flat(ranks)); }

  // Fills two buckets with numbers that depend on `rank`; b and c are in the second one.
  void fill(ErrorFeedback& feedback, int64_t rank, int64_t ranks) {
    at::manual_seed(static_cast<uint64_t>(rank));
    for (const size_t index : {0, 1}) {
      const Residuals residuals = residuals_of(feedback, index);
      const int64_t numel = kParameterNumel * (index == 0 ? 1 : 2);
      const int64_t mean_numel = shard_of(rank, ranks, numel).numel;
      at::from_blob(residuals.own, {numel}).normal_();
      at::from_blob(residuals.mean, {mean_numel}).normal_();
    }
  }
  Residuals residuals_of(ErrorFeedback& feedback, size_t index) {
    const std::vector<at::Tensor> parameters = index == 0 ? std::vector{a_} : std::vector{b_, c_};
    const auto bucket = make_parameters_bucket(parameters, parameters, index, 2);
    return feedback.residuals(bucket, parameter_ranges(bucket));
  }
  // The error of the sum of all later means, by parameter, given the residuals of `ranks` ranks.
  at::Tensor missing(std::vector<ErrorFeedback>& feedback) {
    const auto ranks = static_cast<int64_t>(feedback.size());
    at::Tensor sum = at::zeros({3 * kParameterNumel}, at::kDouble);
    for (int64_t rank = 0; rank < ranks; ++rank) {
      for (const size_t index : {0, 1}) {
        const Residuals residuals = residuals_of(feedback[rank], index);
        const int64_t begin = index == 0 ? 0 : kParameterNumel;
        const int64_t numel = kParameterNumel * (index == 0 ? 1 : 2);
        const auto order = ElementOrder::of(GetParam(), numel);
        const auto add = [&](float* residual, const ElementRange& part, double weight) {
          const at::Tensor numbers = at::from_blob(residual, {part.numel}).to(at::kDouble);
          order.add(numbers, weight, part, sum.narrow(0, begin, numel));
        };
        add(residuals.own, {0, numel}, 1.0 / static_cast<double>(ranks));
        add(residuals.mean, shard_of(rank, ranks, numel), 1);
      }
    }
    return sum;
  }
  // Needed because HookState's tensors are views.
  HookState copy_of(const HookState& state) const {
    HookState copy;
    for (const auto& [name, tensor] : state) copy.emplace(name, tensor.clone());
    return copy;
  }
  const at::Tensor a_ = at::zeros({3, kParameterNumel / 3});
  const at::Tensor b_ = at::zeros({kParameterNumel});
  const at::Tensor c_ = at::zeros({kParameterNumel, 1});
  const std::vector<NamedParameter> parameters_ = {{"a", a_}, {"b", b_}, {"c", c_}};
};

TEST_P(ErrorFeedbackStateTest, ComesBackToTheBitInAWorldOfTheSameSize) {
  for (int64_t rank = 0; rank < 3; ++rank) {
    ErrorFeedback before = of_rank(rank, 3);
    fill(before, rank, 3);
    ErrorFeedback after = of_rank(rank, 3);
    after.load_state({.world_size = 3, .states = {copy_of(before.state(parameters_))}, .first = {}}, parameters_);
    for (const size_t index : {0, 1}) {
      const Residuals expected = residuals_of(before, index);
      const Residuals found = residuals_of(after, index);
      const int64_t numel = kParameterNumel * (index == 0 ? 1 : 2);
      EXPECT_TRUE(at::equal(at::from_blob(found.own, {numel}), at::from_blob(expected.own, {numel})));
      const int64_t mean_numel = shard_of(rank, 3, numel).numel;
      ASSERT_GT(mean_numel, 0);
      EXPECT_TRUE(at::equal(at::from_blob(found.mean, {mean_numel}), at::from_blob(expected.mean, {mean_numel})));
    }
  }
}

// A process that takes the place of a lost rank gets another rank's state, whose residuals are not its own.
TEST_P(ErrorFeedbackStateTest, BeginsWithZerosInThePlaceOfALostRank) {
  ErrorFeedback other = of_rank(0, 3);
  fill(other, 0, 3);
  ErrorFeedback own = of_rank(1, 3);
  own.load_state({.world_size = 3, .states = {}, .first = copy_of(other.state(parameters_))}, parameters_);
  for (const size_t index : {0, 1}) {
    const Residuals found = residuals_of(own, index);
    const int64_t numel = kParameterNumel * (index == 0 ? 1 : 2);
    EXPECT_EQ(at::from_blob(found.own, {numel}).abs().max().item<float>(), 0);
    EXPECT_EQ(at::from_blob(found.mean, {shard_of(1, 3, numel).numel}).abs().max().item<float>(), 0);
  }
}

// With two levels this rank has residuals only for its range, and for the mean of its shard of that range.
TEST_P(ErrorFeedbackStateTest, ComesBackToTheBitOnTheSameNodes) {
  const NodeLayout layout = NodeLayout::of_size(4, 2);
  ErrorFeedback before = of_rank(3, layout);
  const Residuals expected = residuals_of(before, 1);
  const collectives::SentParts parts = collectives::sent_parts(layout, 3, 2 * kParameterNumel);
  at::from_blob(expected.own, {parts.own.numel}).normal_();
  at::from_blob(expected.mean, {parts.mean.numel}).normal_();
  ErrorFeedback after = of_rank(3, layout);
  after.load_state({.world_size = 4, .states = {copy_of(before.state(parameters_))}, .first = {}}, parameters_);
  const Residuals found = residuals_of(after, 1);
  for (const auto& [one, other, numel] : {std::tuple(found.own, expected.own, parts.own.numel),
                                          std::tuple(found.mean, expected.mean, parts.mean.numel)}) {
    ASSERT_GT(numel, 0);
    EXPECT_TRUE(at::equal(at::from_blob(one, {numel}), at::from_blob(other, {numel})));
  }
}

// A checkpoint may be written between the rebuild of the buckets and the first step with them.
TEST_P(ErrorFeedbackStateTest, IsOfTheBucketsThatItWasIn) {
  ErrorFeedback before = of_rank(0, 2);
  fill(before, 0, 2);
  ErrorFeedback after = of_rank(0, 2);
  after.load_state({.world_size = 2, .states = {copy_of(before.state(parameters_))}, .first = {}}, parameters_);
  const auto rebuilt = make_parameters_bucket({c_, b_, a_}, {c_, b_, a_});
  const Residuals expected = before.residuals(rebuilt, parameter_ranges(rebuilt));
  const Residuals found = after.residuals(rebuilt, parameter_ranges(rebuilt));
  EXPECT_TRUE(
      at::equal(at::from_blob(found.own, {3 * kParameterNumel}), at::from_blob(expected.own, {3 * kParameterNumel})));
}

// Float32 sums of some normal numbers, each below 6: within 1e-6.
TEST_P(ErrorFeedbackStateTest, IsSharedOutAnewInAWorldOfAnotherSize) {
  std::vector<ErrorFeedback> before;
  std::vector<HookState> states;
  for (int64_t rank = 0; rank < 3; ++rank) {
    before.push_back(of_rank(rank, 3));
    fill(before.back(), rank, 3);
    states.push_back(copy_of(before.back().state(parameters_)));
  }
  const at::Tensor expected = missing(before);
  for (const int64_t world_size : {1, 2, 4}) {
    std::vector<ErrorFeedback> after;
    for (int64_t rank = 0; rank < world_size; ++rank) {
      FormerRanks saved = {.world_size = 3, .states = {}, .first = states[0]};
      for (int64_t former = rank; former < 3; former += world_size) saved.states.push_back(states[former]);
      after.push_back(of_rank(rank, world_size));
      after.back().load_state(saved, parameters_);
    }
    EXPECT_LT((missing(after) - expected).abs().max().item<double>(), 1e-4) << world_size;
  }
  EXPECT_GT(expected.abs().max().item<double>(), 1);
}

TEST_P(ErrorFeedbackStateTest, NamesWhatDoesNotFit) {
  ErrorFeedback feedback = of_rank(0, 2);
  fill(feedback, 0, 2);
  const auto complaint = [&](const std::function<void(HookState&)>& change) {
    HookState state = copy_of(feedback.state(parameters_));
    change(state);
    ErrorFeedback fresh = of_rank(0, 2);
    return error_message<CorruptInputError>(
        [&] { fresh.load_state({.world_size = 2, .states = {state}, .first = {}}, parameters_); });
  };
  EXPECT_THAT(complaint([](HookState& s) { s["residual.b"] = at::zeros({5}); }), HasSubstr("residuals of 'b' have 5"));
  EXPECT_THAT(complaint([](HookState& s) { s["residual.b"] = at::zeros({5}, at::kLong); }), HasSubstr("'residual.b'"));
  EXPECT_THAT(complaint([](HookState& s) { s["place.b"] = at::zeros({2}, at::kLong); }),
              HasSubstr("is not a valid place"));
  EXPECT_THAT(complaint([](HookState& s) { s.erase("place.b"); }), HasSubstr("bucket 1 leave a gap at 0"));
  if (GetParam() == WireFormat::kInt4B32) {  // In other formats the state has the whole parameter.
    EXPECT_THAT(complaint([](HookState& s) { s["place.a"][2] = 1; }), HasSubstr("belong to another rank"));
  } else {
    EXPECT_THAT(complaint([](HookState& s) { s["place.a"][2] = 1; }), HasSubstr("begin at 1 and have 3000 numbers"));
  }
}

TEST_P(ErrorFeedbackStateTest, BelongsToTheGivenParameters) {
  ErrorFeedback feedback = of_rank(0, 2);
  fill(feedback, 0, 2);
  const HookState saved = copy_of(feedback.state(parameters_));
  const std::vector<NamedParameter> fewer{parameters_[0], parameters_[2]};
  EXPECT_THAT(error_message<c10::ValueError>([&] { feedback.state(fewer); }),
              HasSubstr("a parameter that is not among the 2 given ones, 'a' to 'c'"));
  for (const int64_t world_size : {2, 3}) {  // Its own residuals, and residuals that are shared out.
    ErrorFeedback fresh = of_rank(0, 2);
    EXPECT_THAT(error_message<c10::ValueError>(
                    [&] { fresh.load_state({.world_size = world_size, .states = {saved}, .first = {}}, fewer); }),
                HasSubstr("parameters that the model does not have: 'b'"));
  }
  // Residuals that no bucket has taken yet.
  ErrorFeedback resumed = of_rank(0, 2);
  resumed.load_state({.world_size = 3, .states = {saved}, .first = {}}, parameters_);
  EXPECT_THAT(error_message<c10::ValueError>([&] { resumed.state(fewer); }), HasSubstr("'a' to 'c'"));
}

INSTANTIATE_TEST_SUITE_P(Formats, ErrorFeedbackStateTest, ::testing::Values(WireFormat::kInt4B32, WireFormat::kVar5),
                         [](const auto& info) { return std::string(to_string(info.param)); });

}  // namespace
}  // namespace narrowcast::hooks
