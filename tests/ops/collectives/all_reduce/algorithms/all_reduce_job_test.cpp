#include "ops/collectives/all_reduce/algorithms/all_reduce_job.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <tuple>

#include "ops/collectives/all_reduce/array/element_order.h"
#include "ops/collectives/all_reduce/array/element_range.h"
#include "ops/collectives/all_reduce/codec/codec.h"
#include "ops/comm/engine/engine.h"
#include "tests/ops/collectives/all_reduce/algorithms/reference_all_reduce.h"
#include "tests/support/ranks.h"

namespace narrowcast::collectives {
namespace {

using testing::run_ranks;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

constexpr int64_t kSizes[] = {0, 1, 7, 127, 128, 129, 255, 256, 257, 1'000'003};

// Gradients whose magnitude varies strongly from block to block, with some zeros.
std::vector<at::Tensor> make_arrays(int64_t world_size, int64_t numel, at::ScalarType dtype = at::kFloat) {
  at::manual_seed(7);
  std::vector<at::Tensor> arrays;
  for (int64_t rank = 0; rank < world_size; ++rank) {
    at::Tensor array = at::randn({numel}) * at::exp2(at::arange(numel).div(300, "floor").remainder(20) - 10);
    array.masked_fill_(at::rand({numel}) < 0.1, 0);
    arrays.push_back(array.to(dtype));
  }
  return arrays;
}

// The result of each rank for a job made from `options`, on a copy of its array.
std::vector<at::Tensor> average(const AllReduceJobOptions& options, const std::vector<at::Tensor>& arrays,
                                codec::wire::Rounding rounding = {}) {
  std::vector<at::Tensor> results(arrays.size());
  run_ranks(static_cast<int64_t>(arrays.size()), [&](int64_t rank, const Group& group) {
    AllReduceJobOptions own = options;
    own.name = "a mean";
    own.rank = rank;
    own.world_size = group->getSize();
    own.numel = arrays[rank].numel();
    const auto engine = engine::Engine::for_group(group);
    const auto job = std::make_shared<AllReduceJob>(own, JobMemory{});
    job->set_call({arrays[rank].clone(), rounding, {}});
    const auto future = engine->submit(job);
    future->waitAndThrow();
    results[rank] = future->value().toTensor();
  });
  return results;
}

void expect_all_equal(const std::vector<at::Tensor>& results, const at::Tensor& expected) {
  for (size_t rank = 0; rank < results.size(); ++rank) {
    EXPECT_EQ(results[rank].scalar_type(), expected.scalar_type());
    EXPECT_TRUE(at::equal(results[rank], expected)) << "rank " << rank;
  }
}

class MeanOfSizes : public ::testing::TestWithParam<std::tuple<int64_t, int64_t>> {};

TEST_P(MeanOfSizes, TwoShotsMatchTheirDefinitionBitForBit) {
  const auto [world_size, numel] = GetParam();
  const auto arrays = make_arrays(world_size, numel);
  const auto results = average({.format = WireFormat::kInt8B128, .link = kTwoShotPays}, arrays);
  expect_all_equal(results, world_size == 1   ? arrays[0]
                            : world_size == 2 ? one_shot_mean({}, arrays)
                                              : two_shot_mean({}, arrays));
}

TEST_P(MeanOfSizes, OneShotMatchesItsDefinitionBitForBit) {
  const auto [world_size, numel] = GetParam();
  const auto arrays = make_arrays(world_size, numel);
  const auto results = average({.format = WireFormat::kInt4B32, .link = kOneShotPays}, arrays);
  expect_all_equal(results, world_size == 1 ? arrays[0] : one_shot_mean({WireFormat::kInt4B32}, arrays));
}

INSTANTIATE_TEST_SUITE_P(Mean, MeanOfSizes,
                         ::testing::Combine(::testing::ValuesIn(kWorlds), ::testing::ValuesIn(kSizes)));

class MeanOfFormats : public ::testing::TestWithParam<WireFormat> {};

TEST_P(MeanOfFormats, BothRoutesMatchTheirDefinitionsWithAndWithoutRandomRounding) {
  const auto arrays = make_arrays(3, 20'001);
  const auto two_shot = codec::wire::is_sparse(GetParam()) ? one_shot_mean : two_shot_mean;  // Never two shots.
  for (const bool stochastic : {false, true}) {
    const Reference reference{GetParam(), {stochastic, 42, 3, 0}};
    expect_all_equal(average({.format = GetParam(), .link = kTwoShotPays}, arrays, reference.rounding),
                     two_shot(reference, arrays));
    expect_all_equal(average({.format = GetParam(), .link = kOneShotPays}, arrays, reference.rounding),
                     one_shot_mean(reference, arrays));
  }
}

INSTANTIATE_TEST_SUITE_P(Mean, MeanOfFormats, ::testing::ValuesIn(kWireFormats),
                         [](const auto& info) { return std::string(to_string(info.param)); });

class MeanOfDtypes : public ::testing::TestWithParam<at::ScalarType> {};

TEST_P(MeanOfDtypes, BothRoutesAverageInFloat32AndRoundOnce) {
  const auto arrays = make_arrays(3, 5000, GetParam());
  expect_all_equal(average({.format = WireFormat::kInt8B128, .link = kTwoShotPays}, arrays), two_shot_mean({}, arrays));
  expect_all_equal(average({.format = WireFormat::kInt8B128, .link = kOneShotPays}, arrays), one_shot_mean({}, arrays));
}

INSTANTIATE_TEST_SUITE_P(Mean, MeanOfDtypes, ::testing::Values(at::kFloat, at::kDouble, at::kHalf, at::kBFloat16));

TEST(AllReduceJob, ANonFiniteElementIsNonFiniteOnEveryRank) {
  constexpr auto kInf = std::numeric_limits<float>::infinity();
  for (const WireFormat format : kWireFormats) {
    auto arrays = make_arrays(3, 4000);
    arrays[0][1024] = kInf;                                  // In rank 1's shard.
    arrays[1][3999] = -kInf;                                 // In rank 2's shard.
    arrays[2][0] = std::numeric_limits<float>::quiet_NaN();  // In rank 0's shard.
    arrays[1][2048] = kInf;  // In rank 1's own shard: two shots add this part unencoded.
    for (const LinkCost& link : {kOneShotPays, kTwoShotPays}) {
      for (const at::Tensor& result : average({.format = format, .link = link}, arrays)) {
        for (const int64_t place : {0, 1024, 2048, 3999}) {
          EXPECT_FALSE(std::isfinite(result[place].item<float>())) << to_string(format) << " " << place;
        }
      }
    }
  }
}

TEST(AllReduceJob, ExactElementsAreAveragedInFloat32) {
  const auto arrays = make_arrays(3, 10'000);
  const std::vector<collectives::ElementRange> exact{{0, 5}, {777, 1}, {1020, 100}, {9990, 10}};
  const auto results = average({.format = WireFormat::kInt4B32, .exact = exact, .link = kTwoShotPays}, arrays);
  auto zeroed = arrays;
  for (at::Tensor& array : zeroed) {
    array = array.clone();
    for (const collectives::ElementRange& range : exact) array.narrow(0, range.begin, range.numel).zero_();
  }
  at::Tensor expected = two_shot_mean({WireFormat::kInt4B32}, zeroed);
  const at::Tensor mean = mean_in_rank_order(arrays);
  for (const collectives::ElementRange& range : exact) {
    expected.narrow(0, range.begin, range.numel).copy_(mean.narrow(0, range.begin, range.numel));
  }
  expect_all_equal(results, expected);
}

// Every step sends a constant gradient with a different rounding, until the sum has no error.
class ResidualsOfFormats : public ::testing::TestWithParam<WireFormat> {};

// A rank sends no message for its own shard, so a residual that other buckets have carried over is added to the mean.
TEST_P(ResidualsOfFormats, StayInTheOwnShardWhereTheMeanIsNotFinite) {
  constexpr int64_t kRanks = 3;
  constexpr int64_t kNumel = 9000;
  const ElementOrder order = ElementOrder::of(GetParam(), kNumel);
  run_ranks(kRanks, [&](int64_t rank, const Group& group) {
    const auto job = std::make_shared<AllReduceJob>(AllReduceJobOptions{.name = "a mean",
                                                                        .rank = rank,
                                                                        .world_size = kRanks,
                                                                        .numel = kNumel,
                                                                        .format = GetParam(),
                                                                        .link = kTwoShotPays},
                                                    JobMemory{});
    const at::Tensor array = at::ones({kNumel});
    for (int64_t shard = 0; shard < kRanks && rank == 1; ++shard) {
      array[order.element(shard_of(shard, kRanks, kNumel).begin) + 5].fill_(std::numeric_limits<float>::quiet_NaN());
    }
    const ElementRange shard = shard_of(rank, kRanks, kNumel);
    const at::Tensor own = at::ones({kNumel});
    const at::Tensor mean = at::ones({shard.numel});
    job->set_call({array, {}, {own.data_ptr<float>(), mean.data_ptr<float>()}});
    engine::Engine::for_group(group)->submit(job)->waitAndThrow();
    const at::Tensor is_finite = order.take(array, shard).isfinite();
    EXPECT_FALSE(is_finite[5].item<bool>());
    EXPECT_TRUE(at::equal(own.narrow(0, shard.begin, shard.numel), at::where(is_finite, 0.0F, 1.0F))) << rank;
    EXPECT_EQ(mean[5].item<float>(), 1) << rank;
  });
}

INSTANTIATE_TEST_SUITE_P(Mean, ResidualsOfFormats, ::testing::ValuesIn(two_shot_formats()),
                         [](const auto& info) { return std::string(to_string(info.param)); });

TEST(AllReduceJob, ErrorFeedbackSendsLaterWhatIsMissingNow) {
  constexpr int64_t kNumel = 5000;
  constexpr int64_t kSteps = 200;
  const auto arrays = make_arrays(3, kNumel);
  const at::Tensor mean = mean_in_rank_order(arrays);
  for (const bool with_feedback : {false, true}) {
    run_ranks(3, [&](int64_t rank, const Group& group) {
      AllReduceJob job({.name = "a mean",
                        .rank = rank,
                        .world_size = 3,
                        .numel = kNumel,
                        .format = WireFormat::kInt4B32,
                        .link = kTwoShotPays},
                       {});
      const auto shared = std::shared_ptr<AllReduceJob>(&job, [](auto*) {});
      const auto engine = engine::Engine::for_group(group);
      at::Tensor own = at::zeros({kNumel});
      at::Tensor shard = at::zeros({shard_of(rank, 3, kNumel).numel});
      const Residuals residuals =
          with_feedback ? Residuals{own.data_ptr<float>(), shard.data_ptr<float>()} : Residuals{};
      at::Tensor sum = at::zeros({kNumel}, at::kDouble);
      for (int64_t step = 0; step < kSteps; ++step) {
        job.set_call({arrays[rank].clone(), {}, residuals});
        const auto future = engine->submit(shared);
        future->waitAndThrow();
        sum += future->value().toTensor();
      }
      // The error after all steps equals the residuals: less than a step of a code on either hop, for any number of
      // steps. Without feedback every step repeats the same error.
      const at::Tensor missing = (sum - mean.to(at::kDouble) * kSteps).abs();
      const at::Tensor step = 2 * at::stack(arrays).abs().amax() / 7;
      if (with_feedback) {
        EXPECT_LE(missing.max().item<double>(), 2 * step.item<double>());
        EXPECT_LT(missing.mean().item<double>(), 0.1 * step.item<double>());
      } else {
        EXPECT_GT(missing.max().item<double>(), 2 * step.item<double>());
      }
    });
  }
}

}  // namespace
}  // namespace narrowcast::collectives
