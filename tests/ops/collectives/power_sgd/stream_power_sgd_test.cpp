// The means on a stream must equal the engine's up to rounding. On the CPU, where a group's collectives block.
#include "ops/collectives/power_sgd/stream_power_sgd.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <tuple>

#include "ops/collectives/power_sgd/low_rank.h"
#include "ops/collectives/power_sgd/stream_low_rank.h"
#include "ops/comm/engine/engine.h"
#include "ops/comm/node/find_nodes.h"
#include "tests/support/ranks.h"

namespace narrowcast::collectives {
namespace {

using testing::run_ranks;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

constexpr int64_t kRows = 40;
constexpr int64_t kColumns = 30;
constexpr int64_t kPlain = 33;
constexpr int64_t kNumel = 2 * kRows * kColumns + kPlain;

// Two equal matrices with a vector between them, or one square matrix.
CompressionPlan make_plan(int64_t rank, bool batch, bool square) {
  if (square) return plan_of_square(kNumel, rank);
  const int64_t numel = kRows * kColumns;
  return plan_by_layer(
      kNumel,
      {{{0, numel}, {kRows, kColumns}}, {{numel, kPlain}, {kPlain}}, {{numel + kPlain, numel}, {kRows, kColumns}}},
      {.rank = rank, .min_rate = 1, .batch = batch});
}

at::Tensor gradients(int64_t rank, int64_t step, at::ScalarType dtype) {
  at::Tensor numbers = at::empty({kNumel}, dtype);
  NormalNumbers(100 * rank + step + 1, LowRankBits::kOfPyTorch).fill(numbers);
  return numbers;
}

std::shared_ptr<LowRankState> make_state(const PowerSgdJobOptions& options) {
  auto state = std::make_shared<LowRankState>();
  state->residual = at::zeros({options.plan.array_numel}, options.arithmetic_dtype());
  state->is_p = options.alternates;
  return state;
}

std::shared_ptr<PowerSgdJobMemory> make_memory() { return std::make_shared<PowerSgdJobMemory>(SeedDraws(0)); }

std::shared_ptr<const StreamGroups> split(const Group& group, const node::NodeLayout& layout) {
  const auto make = [](const c10::intrusive_ptr<c10d::Store>& store, int place, int size) {
    return testing::join_ranks(store, place, size, {});
  };
  return layout.has_levels() ? std::make_shared<const StreamGroups>(group, layout, make) : nullptr;
}

// The same steps on a stream and on the engine.
struct PowerSgdBothWays {
  std::shared_ptr<LowRankState> stream_state;
  std::shared_ptr<LowRankState> job_state;
  std::unique_ptr<PowerSgdStream> stream;
  std::shared_ptr<PowerSgdJob> job;
  std::shared_ptr<engine::Engine> engine;

  PowerSgdBothWays(const Group& group, PowerSgdJobOptions options, int64_t node_size = 1) {
    options.name = "a mean";
    options.rank = group->getRank();
    options.world_size = group->getSize();
    options.nodes = node::find_nodes(group, node_size);
    stream_state = make_state(options);
    job_state = make_state(options);
    stream = std::make_unique<PowerSgdStream>(StreamRanks{group, split(group, options.nodes->layout)}, options,
                                              at::kCPU, stream_state, make_memory());
    job = std::make_shared<PowerSgdJob>(options, job_state, make_memory());
    engine = engine::Engine::for_group(group);
  }

  at::Tensor by_stream(const at::Tensor& bucket) const {
    at::Tensor mean = bucket.clone();
    stream->enqueue(mean);
    return mean;
  }

  at::Tensor by_job(const at::Tensor& bucket) const {
    job->set_bucket(bucket.clone());
    const auto future = engine->submit(job);
    future->waitAndThrow();
    return future->value().toTensor();
  }
};

void expect_near(const at::Tensor& actual, const at::Tensor& expected, double relative, const char* what) {
  const at::Tensor off = actual.to(at::kDouble) - expected.to(at::kDouble);
  EXPECT_LE(off.norm().item<double>(), relative * expected.to(at::kDouble).norm().item<double>()) << what;
}

struct Kind {
  PowerSgdJobOptions options;
  double tolerance = 1e-3;  // A float32 rounding error grows with each step that begins with it.
};

std::vector<Kind> stream_kinds() {
  std::vector<Kind> kinds;
  for (const int64_t rank : {1, 2, 4}) {
    for (const auto& [warm_start, alternates] :
         {std::pair(true, false), std::pair(false, false), std::pair(true, true)}) {
      for (const bool averaged : {false, true}) {
        kinds.push_back({{.plan = make_plan(rank, rank == 2, false),
                          .epsilon = rank == 1 ? 1e-2 : 0,
                          .averaged_memory = averaged,
                          .warm_start = warm_start,
                          .alternates = alternates}});
      }
    }
  }
  kinds.push_back({{.plan = make_plan(2, false, true)}});
  kinds.push_back({{.bucket_dtype = at::kDouble, .plan = make_plan(2, false, false)}, 1e-10});
  kinds.push_back({{.bucket_dtype = at::kHalf, .plan = make_plan(2, false, true)}, 2e-3});
  return kinds;
}

class PowerSgdStreams : public ::testing::TestWithParam<std::tuple<int64_t, int64_t>> {};

TEST_P(PowerSgdStreams, GiveTheMeansOfTheEngine) {
  const auto& [world_size, node_size] = GetParam();
  run_ranks(world_size, [&, node_size = node_size](int64_t rank, const Group& group) {
    for (const Kind& kind : stream_kinds()) {
      PowerSgdBothWays ways(group, kind.options, node_size);
      for (int64_t step = 0; step < 4; ++step) {
        const at::Tensor bucket =
            gradients(rank, step, kind.options.bucket_dtype == at::kDouble ? at::kDouble : at::kFloat)
                .to(kind.options.bucket_dtype);
        EXPECT_EQ(ways.stream->payload_bytes(), ways.job->payload_bytes());
        expect_near(ways.by_stream(bucket), ways.by_job(bucket), kind.tolerance, "mean");
        expect_near(ways.stream_state->residual, ways.job_state->residual, kind.tolerance, "residual");
        EXPECT_EQ(ways.stream_state->is_p, ways.job_state->is_p);
      }
    }
  });
}

// The residuals contain the rounding error, as on the engine: no part of a gradient is lost over the steps.
TEST_P(PowerSgdStreams, KeepWhatFormatsLose) {
  const auto& [world_size, node_size] = GetParam();
  for (const bool alternates : {false, true}) {
    std::vector<at::Tensor> kept(world_size);
    std::vector<at::Tensor> means(world_size);
    run_ranks(world_size, [&, node_size = node_size, ranks = world_size](int64_t rank, const Group& group) {
      const PowerSgdBothWays ways(
          group, {.plan = make_plan(2, false, false), .alternates = alternates, .format = WireFormat::kInt8B32},
          node_size);
      means[rank] = at::zeros({kNumel}, at::kDouble);
      for (int64_t step = 0; step < 4; ++step) means[rank] += ways.by_stream(gradients(rank, step, at::kFloat));
      kept[rank] = ways.stream_state->residual.to(at::kDouble) / static_cast<double>(ranks);
    });
    at::Tensor missing = means[0].clone();
    for (int64_t rank = 0; rank < world_size; ++rank) {
      EXPECT_TRUE(at::equal(means[rank], means[0]));
      missing += kept[rank];
      for (int64_t step = 0; step < 4; ++step) {
        missing -= gradients(rank, step, at::kFloat).to(at::kDouble) / static_cast<double>(world_size);
      }
    }
    EXPECT_LE(missing.norm().item<double>(), 1e-4 * means[0].norm().item<double>()) << alternates;
    EXPECT_GT(kept[0].norm().item<double>(), 0.01 * means[0].norm().item<double>()) << "a test of nothing";
  }
}

// Residuals and Q stay unchanged.
TEST_P(PowerSgdStreams, ForgetAStepThatIsNotFinite) {
  const auto& [world_size, node_size] = GetParam();
  for (const WireFormat format : {WireFormat::kFp32, WireFormat::kInt8B32}) {
    for (const bool averaged : {false, true}) {
      run_ranks(world_size, [&, node_size = node_size](int64_t rank, const Group& group) {
        const PowerSgdJobOptions options{
            .plan = make_plan(2, false, false), .averaged_memory = averaged, .format = format};
        const PowerSgdBothWays without(group, options, node_size);
        const PowerSgdBothWays with(group, options, node_size);
        for (int64_t step = 0; step < 3; ++step) {
          for (const int64_t element : {kNumel - 1, kRows * kColumns}) {  // The last of a matrix, and of a vector.
            at::Tensor bad = gradients(rank, step, at::kFloat);
            if (rank == 0) bad[element].fill_(std::numeric_limits<float>::quiet_NaN());
            EXPECT_TRUE(with.by_stream(bad).isnan().all().item<bool>());
          }
          const at::Tensor good = gradients(rank, step, at::kFloat);
          EXPECT_TRUE(at::equal(with.by_stream(good), without.by_stream(good))) << step;
        }
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, PowerSgdStreams,
                         ::testing::Values(std::tuple(1, 1), std::tuple(2, 1), std::tuple(3, 1), std::tuple(2, 2),
                                           std::tuple(4, 2), std::tuple(5, 2)));

// An alternating step continues with the former factor, and the sum of the means still reaches the gradients.
TEST(PowerSgdStream, GoesOnAfterAStepThatIsNotFiniteWhereStepsAlternate) {
  run_ranks(2, [](int64_t rank, const Group& group) {
    const PowerSgdBothWays ways(group, {.plan = make_plan(2, false, false), .alternates = true});
    at::Tensor bad = gradients(rank, 0, at::kFloat);
    bad[3].fill_(std::numeric_limits<float>::infinity());
    const at::Tensor good = gradients(0, 1, at::kFloat);
    at::Tensor sum = at::zeros({kNumel}, at::kDouble);
    constexpr int64_t kSteps = 60;
    for (int64_t step = 0; step < kSteps; ++step) {
      if (step % 7 == 0) {
        EXPECT_TRUE(ways.by_stream(bad).isnan().all().item<bool>());
      }
      sum += ways.by_stream(good);
    }
    expect_near(sum / static_cast<double>(kSteps), good, 0.5, "what was given");
    EXPECT_TRUE(ways.stream_state->residual.isfinite().all().item<bool>());
  });
}

TEST(PowerSgdStream, LearnsFromAMatrixThatWasZero) {
  run_ranks(2, [](int64_t rank, const Group& group) {
    for (const bool averaged : {false, true}) {
      const PowerSgdBothWays ways(group, {.plan = make_plan(2, false, false), .averaged_memory = averaged});
      EXPECT_EQ(ways.by_stream(at::zeros({kNumel})).abs().max().item<double>(), 0);
      EXPECT_EQ(ways.by_stream(at::zeros({kNumel})).abs().max().item<double>(), 0);
      const at::Tensor matrix = ways.by_stream(gradients(rank, 0, at::kFloat)).narrow(0, 0, kRows * kColumns);
      const at::Tensor singular = at::linalg_svdvals(matrix.view({kRows, kColumns}));
      EXPECT_GT(singular[1].item<float>(), 0.1) << "both columns were drawn anew";
    }
  });
}

TEST(OrthogonalizeOnStream, MakesColumnsOrthonormalInTheSameSpan) {
  at::manual_seed(1);
  for (const LowRankBits bits : {LowRankBits::kOfAnyMachine, LowRankBits::kOfPyTorch}) {
    for (const int64_t rank : {1, 2, 3, 8}) {
      const at::Tensor before = at::randn({3, 50, rank});
      const at::Tensor columns = before.clone();
      orthogonalize_on_stream(columns, 0, bits);
      const at::Tensor gram = at::bmm(columns.transpose(1, 2), columns);
      EXPECT_LE((gram - at::eye(rank)).abs().max().item<double>(), 50 * 0x1p-23);
      const at::Tensor projected = at::bmm(columns, at::bmm(columns.transpose(1, 2), before));
      EXPECT_LE((projected - before).abs().max().item<double>(), 200 * 0x1p-23);
      const at::Tensor as_on_cpu = before.clone();
      orthogonalize(as_on_cpu, 0, bits);
      if (bits == LowRankBits::kOfAnyMachine || rank <= 2) {
        EXPECT_LE((columns - as_on_cpu).abs().max().item<double>(), 0x1p-20);
      }
    }
  }
}

// A column in the span of the others leaves only rounding error. If it were normalised, it would not be orthogonal to
// the others.
TEST(OrthogonalizeOnStream, KeepsNoMoreColumnsThanThereAreDirections) {
  constexpr int64_t kSide = 29;
  constexpr int64_t kDirections = 20;
  at::manual_seed(3);
  const at::Tensor matrix = at::randn({1, kSide, kSide});
  matrix.narrow(1, kDirections, kSide - kDirections).zero_();
  for (const LowRankBits bits : {LowRankBits::kOfAnyMachine, LowRankBits::kOfPyTorch}) {
    const at::Tensor columns = at::bmm(matrix, at::randn({1, kSide, kSide}));
    orthogonalize_on_stream(columns, 0, bits);
    const at::Tensor projected = at::bmm(columns, at::bmm(columns.transpose(1, 2), matrix));
    EXPECT_LE((projected - matrix).abs().max().item<double>(), 1e-5);
    EXPECT_EQ(columns.narrow(2, kDirections, kSide - kDirections).abs().max().item<double>(), 0);
  }
}

TEST(OrthogonalizeOnStream, ReplacesColumnsOfZeros) {
  at::manual_seed(2);
  const at::Tensor spare = at::randn({1, 20, 3});
  for (const LowRankBits bits : {LowRankBits::kOfAnyMachine, LowRankBits::kOfPyTorch}) {
    for (const int64_t rank : {2, 3}) {
      const at::Tensor columns = at::randn({1, 20, rank});
      columns.select(2, 1).zero_();
      const at::Tensor zeros_stay = columns.clone();
      orthogonalize_on_stream(zeros_stay, 0, bits);
      EXPECT_EQ(zeros_stay.select(2, 1).abs().max().item<double>(), 0);
      orthogonalize_on_stream(columns, 0, bits, spare.narrow(2, 0, rank));
      const at::Tensor gram = at::bmm(columns.transpose(1, 2), columns);
      EXPECT_LE((gram - at::eye(rank)).abs().max().item<double>(), 1e-5);
    }
  }
}

}  // namespace
}  // namespace narrowcast::collectives
