#include "ops/collectives/all_reduce/algorithms/two_levels.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <limits>
#include <tuple>

#include "ops/collectives/all_reduce/algorithms/all_reduce_job.h"
#include "ops/comm/engine/engine.h"
#include "tests/ops/collectives/all_reduce/algorithms/reference_all_reduce.h"
#include "tests/support/error_message.h"
#include "tests/support/ranks.h"

namespace narrowcast::collectives {
namespace {

using node::find_nodes;
using node::NodeLayout;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::run_ranks;
using testing::wait_for_ranks;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

std::vector<at::Tensor> arrays_of(int64_t ranks, int64_t numel, at::ScalarType dtype = at::kFloat) {
  at::manual_seed(ranks);
  std::vector<at::Tensor> arrays;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    arrays.push_back((at::randn({numel}) * at::exp2(at::arange(numel).div(300, "floor").remainder(20) - 10)).to(dtype));
  }
  return arrays;
}

std::shared_ptr<AllReduceJob> make_job(const Group& group, AllReduceJobOptions options, int64_t node_size) {
  options.name = "a mean";
  options.rank = group->getRank();
  options.world_size = group->getSize();
  options.nodes = find_nodes(group, node_size);
  return std::make_shared<AllReduceJob>(std::move(options), JobMemory{});
}

// The result of each rank.
std::vector<at::Tensor> averaged_over_nodes(const AllReduceJobOptions& options, const std::vector<at::Tensor>& arrays,
                                            int64_t node_size, codec::wire::Rounding rounding = {}) {
  std::vector<at::Tensor> results(arrays.size());
  run_ranks(static_cast<int64_t>(arrays.size()), [&](int64_t rank, const Group& group) {
    AllReduceJobOptions own = options;
    own.numel = arrays[rank].numel();
    const auto job = make_job(group, own, node_size);
    job->set_call({arrays[rank].clone(), rounding, {}});
    const auto engine = engine::Engine::for_group(group);
    const auto future = engine->submit(job);
    future->waitAndThrow();
    results[rank] = future->value().toTensor();
  });
  return results;
}

void expect_equal_to(const std::vector<at::Tensor>& results, const at::Tensor& expected) {
  for (size_t rank = 0; rank < results.size(); ++rank) {
    EXPECT_EQ(results[rank].scalar_type(), expected.scalar_type());
    EXPECT_TRUE(at::equal(results[rank], expected)) << "rank " << rank;
  }
}

// Number of ranks, ranks per node, elements.
class TwoLevelsOf : public ::testing::TestWithParam<std::tuple<int64_t, int64_t, int64_t>> {};

TEST_P(TwoLevelsOf, MatchTheirDefinitionBitForBit) {
  const auto [ranks, node_size, numel] = GetParam();
  const auto arrays = arrays_of(ranks, numel);
  const NodeLayout layout = NodeLayout::of_size(ranks, node_size);
  for (const LinkCost& link : {kOneShotPays, kTwoShotPays}) {
    expect_equal_to(averaged_over_nodes({.format = WireFormat::kInt8B128, .link = link}, arrays, node_size),
                    mean_over_nodes({WireFormat::kInt8B128}, arrays, layout, link));
  }
}

INSTANTIATE_TEST_SUITE_P(Mean, TwoLevelsOf,
                         ::testing::Combine(::testing::Values(2, 4, 5, 8), ::testing::Values(2, 3, 8),
                                            ::testing::Values(0, 1, 129, 1000, 5000, 1'000'003)));

class TwoLevelsIn : public ::testing::TestWithParam<WireFormat> {};

TEST_P(TwoLevelsIn, RoundAtRandomAlikeOnAllRanks) {
  const auto arrays = arrays_of(6, 20'001);
  const Reference reference{GetParam(), {true, 42, 3, 7}};
  for (const LinkCost& link : {kOneShotPays, kTwoShotPays}) {
    expect_equal_to(averaged_over_nodes({.format = GetParam(), .link = link}, arrays, 2, reference.rounding),
                    mean_over_nodes(reference, arrays, NodeLayout::of_size(6, 2), link));
  }
}

INSTANTIATE_TEST_SUITE_P(Mean, TwoLevelsIn, ::testing::ValuesIn(kWireFormats),
                         [](const auto& info) { return std::string(to_string(info.param)); });

TEST(TwoLevels, TakeEveryDtype) {
  for (const auto dtype : {at::kDouble, at::kHalf, at::kBFloat16}) {
    const auto arrays = arrays_of(4, 5000, dtype);
    expect_equal_to(averaged_over_nodes({.format = WireFormat::kInt8B128}, arrays, 2),
                    mean_over_nodes({WireFormat::kInt8B128}, arrays, NodeLayout::of_size(4, 2)));
  }
}

TEST(TwoLevels, ANonFiniteElementReachesAllRanks) {
  for (const int64_t node_size : {2, 4}) {
    auto arrays = arrays_of(4, 9000);
    arrays[1][8999] = std::numeric_limits<float>::infinity();
    arrays[3][0] = std::numeric_limits<float>::quiet_NaN();
    for (const at::Tensor& result : averaged_over_nodes({.format = WireFormat::kInt4B32}, arrays, node_size)) {
      EXPECT_FALSE(std::isfinite(result[0].item<float>()));
      EXPECT_FALSE(std::isfinite(result[8999].item<float>()));
      EXPECT_TRUE(std::isfinite(result[4500].item<float>()));
    }
  }
}

// A rank adds its carried residual again in the next step where the mean was not finite.
TEST(TwoLevels, WhatIsCarriedStaysWhereTheMeanIsNotFinite) {
  auto arrays = arrays_of(4, 9000);
  arrays[3][300] = std::numeric_limits<float>::quiet_NaN();
  run_ranks(4, [&](int64_t rank, const Group& group) {
    const auto job = make_job(group, {.numel = 9000, .format = WireFormat::kInt8B128}, 2);
    const at::Tensor carried = at::ones({9000});
    const at::Tensor own = at::zeros({9000});
    const at::Tensor mean = at::zeros({9000});
    job->set_call({arrays[rank].clone(), {}, {own.data_ptr<float>(), mean.data_ptr<float>(), {own, mean}, carried}});
    const auto engine = engine::Engine::for_group(group);
    engine->submit(job)->waitAndThrow();
    const at::Tensor expected = at::zeros({9000});
    expected.narrow(0, 256, 128).fill_(1);  // The block of element 300.
    EXPECT_TRUE(at::equal(carried, expected)) << rank;
  });
}

TEST(TwoLevels, ExactElementsAreAveragedInFloat32) {
  const auto arrays = arrays_of(4, 10'000);
  const ElementRange exact{700, 3000};
  const auto results = averaged_over_nodes({.format = WireFormat::kInt4B32, .exact = {exact}}, arrays, 2);
  std::vector<at::Tensor> parts;
  for (const at::Tensor& array : arrays) parts.push_back(array.narrow(0, exact.begin, exact.numel));
  const at::Tensor expected = mean_over_nodes({WireFormat::kFp32}, parts, NodeLayout::of_size(4, 2));
  for (const at::Tensor& result : results) {
    EXPECT_TRUE(at::equal(result.narrow(0, exact.begin, exact.numel), expected));
    EXPECT_FALSE(at::equal(result.narrow(0, 0, 700), mean_in_rank_order(arrays).narrow(0, 0, 700)));
  }
}

TEST(TwoLevels, OnlyOwnersSendAndOnlyToTheirCounterparts) {
  run_ranks(5, [](int64_t rank, const Group& group) {
    const auto job = make_job(group, {.numel = 4096, .format = WireFormat::kInt8B128}, 2);  // 2 + 2 + 1: one segment.
    const int64_t whole = encoded_size(4096, WireFormat::kInt8B128);
    EXPECT_EQ(job->payload_bytes(), rank % 2 == 0 ? 2 * whole : 0);
    const SentParts parts = sent_parts(NodeLayout::of_size(5, 2), rank, 4096);
    EXPECT_EQ(parts.own.numel, rank % 2 == 0 ? 4096 : 0);
  });
  const SentParts parts = sent_parts(NodeLayout::of_size(4, 2), 3, 8192);
  EXPECT_EQ(parts.own, (ElementRange{4096, 4096}));
  EXPECT_EQ(parts.mean, (ElementRange{6144, 2048}));
  EXPECT_EQ(sent_parts(NodeLayout::flat(2), 1, 4096).mean, (ElementRange{2048, 2048}));
}

// Arrays of different sizes use the same memory in turn, while one rank is as far ahead of the others as possible.
TEST(TwoLevels, ManyExchangesInARowDoNotMeetInMemory) {
  constexpr int64_t kRanks = 4;
  constexpr int64_t kSizes[] = {100'000, 3, 70'000, 2048, 150'001, 1024};
  std::vector<std::vector<at::Tensor>> arrays;
  for (const int64_t numel : kSizes) arrays.push_back(arrays_of(kRanks, numel));
  run_ranks(kRanks, [&](int64_t rank, const Group& group) {
    const auto engine = engine::Engine::for_group(group);
    const JobMemory memory;
    std::vector<c10::intrusive_ptr<c10::ivalue::Future>> futures;
    for (int round = 0; round < 10; ++round) {
      for (const auto& by_rank : arrays) {
        const auto job = make_job(group, {.numel = by_rank[0].numel(), .format = WireFormat::kFp32}, 2);
        job->set_call({by_rank[rank].clone(), {}, {}});
        futures.push_back(engine->submit(job));
        if (rank == round % kRanks) futures.back()->waitAndThrow();  // The other ranks run ahead.
      }
    }
    for (size_t i = 0; i < futures.size(); ++i) {
      futures[i]->waitAndThrow();
      EXPECT_TRUE(at::equal(
          futures[i]->value().toTensor(),
          mean_over_nodes({WireFormat::kFp32}, arrays[i % std::size(kSizes)], NodeLayout::of_size(kRanks, 2))))
          << i;
    }
  });
}

// Every counter must advance in each use, for any number of elements. A counter that fell behind use after use would
// finally seem to be ahead (NodeMemory).
TEST(TwoLevels, EveryRankReachesEveryMomentOfATurn) {
  constexpr int64_t kRanks = 5;  // With nodes of 3 the last node has fewer ranks.
  constexpr int64_t kExact = 4;
  for (const int64_t node_size : {2, 3, 5}) {
    for (const int64_t numel : {8, 3000, 20'000}) {
      run_ranks(kRanks, [&](int64_t rank, const Group& group) {
        const auto job =
            make_job(group, {.numel = numel, .format = WireFormat::kFp32, .exact = {{0, kExact}}}, node_size);
        job->set_call({at::ones({numel}), {}, {}});
        engine::Engine::for_group(group)->submit(job)->waitAndThrow();
        wait_for_ranks(group);
        const auto memory = find_nodes(group, node_size)->memory;
        if (memory == nullptr) return;  // This rank is the only one of its node.
        for (const int64_t array : {0, 1}) {
          const node::SlotUse first{array, 0, 1};
          for (const auto phase : {node::Phase::kStaged, node::Phase::kPublished, node::Phase::kFinished}) {
            EXPECT_TRUE(memory->all_have_reached(phase, first))
                << "rank " << rank << " of nodes of " << node_size << ", " << numel << " elements, array " << array
                << ", phase " << static_cast<int>(phase);
          }
        }
        wait_for_ranks(group);
      });
    }
  }
}

TEST(TwoLevels, ASilentRankFailsTheExchangeAfterTheTimeout) {
  const auto body = [](int64_t rank, const Group& group) {
    const auto job = make_job(group, {.numel = 1000, .format = WireFormat::kFp32}, 2);
    if (rank == 1) return;  // Its group lives on and sends nothing until all ranks have returned.
    job->set_call({at::ones({1000}), {}, {}});
    const auto engine = engine::Engine::for_group(group);
    const auto future = engine->submit(job);
    EXPECT_THAT(testing::error_message<c10::DistBackendError>([&] { future->waitAndThrow(); }),
                AllOf(HasSubstr("rank 0: a mean: waiting for rank 1 on the same node failed"), HasSubstr("Timed out")));
  };
  run_ranks(2, body, {.timeout = std::chrono::milliseconds(500)});
}

// Its process lives on, but will never finish what it began.
TEST(TwoLevels, ARankThatGivesUpFailsTheExchangeAtOnce) {
  const auto begin = std::chrono::steady_clock::now();
  run_ranks(3, [](int64_t rank, const Group& group) {
    auto engine = engine::Engine::for_group(group);
    auto job = make_job(group, {.numel = 1000, .format = WireFormat::kFp32}, 3);
    wait_for_ranks(group);
    if (rank == 2) {
      wait_for_ranks(group);
      return;
    }
    job->set_call({at::ones({1000}), {}, {}});
    const auto future = engine->submit(job);
    if (rank == 1) engine.reset();
    job.reset();
    EXPECT_THROW(future->waitAndThrow(), c10::DistBackendError);
    wait_for_ranks(group);
  });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, testing::kPatience / 2) << "half of the group's timeout";
}

// Also with a new engine and new jobs, as if a caller continued after the error.
TEST(TwoLevels, AGroupOfWhichARankGaveUpSaysThatItCannotBeUsed) {
  run_ranks(2, [](int64_t rank, const Group& group) {
    const auto nodes = find_nodes(group, 2);
    if (rank == 1) nodes->memory->give_up();
    wait_for_ranks(group);
    const auto job = make_job(group, {.numel = 1000, .format = WireFormat::kFp32}, 2);
    job->set_call({at::ones({1000}), {}, {}});
    const auto engine = engine::Engine::for_group(group);
    const auto future = engine->submit(job);
    EXPECT_THAT(
        testing::error_message<c10::DistBackendError>([&] { future->waitAndThrow(); }),
        AllOf(HasSubstr("rank " + std::to_string(rank) + ": an exchange in the node's memory failed: "),
              HasSubstr("rank 1 of this node cancelled an exchange: the process group cannot be used any more")));
    wait_for_ranks(group);
  });
}

}  // namespace
}  // namespace narrowcast::collectives
