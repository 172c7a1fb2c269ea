// The contract of every hook, checked over worlds x sizes x dtypes.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <future>
#include <optional>
#include <set>

#include <narrowcast/hooks.h>
#include "tests/hooks/all/bucket.h"
#include "tests/hooks/all/hook_cases.h"
#include "tests/support/in_turn.h"
#include "tests/support/ranks.h"

namespace narrowcast::hooks {
namespace {

using testing::run_ranks;
using Future = c10::intrusive_ptr<c10::ivalue::Future>;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         (a.numel() == 0 || std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0);
}

// The buckets of one step: by bucket, then by rank.
using Step = std::vector<Gradients>;

Step make_step(const std::vector<int64_t>& sizes, int64_t world_size, at::ScalarType dtype) {
  Step step;
  for (const int64_t size : sizes) {
    Gradients gradients;
    // Ranks differ in magnitude, and odd ranks in sign, so that each has different scales and zero points.
    for (int64_t rank = 0; rank < world_size; ++rank) {
      const at::Tensor x = at::randn({size}) * (1e-3 * static_cast<double>(rank + 1));
      gradients.push_back((rank % 2 == 1 ? x.abs() : x).to(dtype));
    }
    step.push_back(std::move(gradients));
  }
  return step;
}

// Runs all buckets of `step` as a Reducer would: every hook call first, a separate all-reduce while they are in flight,
// then the futures in order.
std::vector<at::Tensor> run_step(CommHook& hook, const Step& step, int64_t rank, const Group& group) {
  std::vector<Future> futures;
  for (size_t index = 0; index < step.size(); ++index) {
    auto bucket = make_bucket(step[index][rank].clone(), index, step.size());
    futures.push_back(hook.runHook(bucket));
  }
  std::vector<at::Tensor> used_parameters{at::ones({100}, at::kInt)};
  group->allreduce(used_parameters)->wait();
  EXPECT_TRUE(at::equal(used_parameters[0], at::full({100}, group->getSize(), at::kInt)));
  std::vector<at::Tensor> results;
  for (const Future& future : futures) {
    future->waitAndThrow();
    results.push_back(hook.parseHookResult(future->value()));
  }
  return results;
}

void expect_result(const HookCase& hook, const Gradients& gradients, const at::Tensor& result,
                   const at::Tensor& expected) {
  ASSERT_EQ(result.scalar_type(), gradients[0].scalar_type());
  if (hook.tolerance) {
    EXPECT_TRUE(((result.to(at::kDouble) - expected).abs() <= hook.tolerance(gradients)).all().item<bool>());
  } else {
    EXPECT_TRUE(same_bits(result, expected));
  }
}

void expect_conformance(const HookCase& hook, const Gradients& gradients, const std::vector<at::Tensor>& results) {
  for (size_t rank = 0; rank < results.size(); ++rank) {
    SCOPED_TRACE(::testing::Message() << "rank " << rank);
    if (rank == 0 || !hook.averages) {
      expect_result(hook, gradients, results[rank], hook.expected(gradients, static_cast<int64_t>(rank)));
    } else {
      EXPECT_TRUE(same_bits(results[rank], results[0])) << "replicas differ";
    }
  }
}

// Float32 bytes divided by the bytes of a step's messages, which two ranks send once. Empty if `rank` sends nothing.
std::optional<double> expected_compression(const HookCase& hook, const Step& step, int64_t rank) {
  int64_t sent = 0;
  int64_t sent_by_two = 0;
  int64_t float32 = 0;
  for (const Gradients& gradients : step) {
    sent += hook.payload_bytes(gradients[0], rank, static_cast<int64_t>(gradients.size()));
    sent_by_two += hook.payload_bytes(gradients[0], 0, 2);
    float32 += 4 * gradients[0].numel();
  }
  return sent > 0 ? std::optional(static_cast<double>(float32) / static_cast<double>(sent_by_two)) : std::nullopt;
}

// Runs `steps` one after the other with one hook object per rank, and checks results and bytes.
void check_steps(const HookCase& hook_case, const std::vector<Step>& steps, int64_t world_size) {
  std::vector<std::vector<std::vector<at::Tensor>>> results(world_size);  // By rank, step, bucket.
  std::vector<int64_t> payload_bytes(world_size);
  run_ranks(world_size, [&](int64_t rank, const Group& group) {
    const auto hook = create_comm_hook(
        hook_case.name, {.process_group = group, .wire = hook_case.wire, .channel_size = hook_case.channel_size});
    for (const Step& step : steps) results[rank].push_back(run_step(*hook, step, rank, group));
    payload_bytes[rank] = hook->payload_bytes_sent();
    if (hook_case.wire.node_size.value_or(1) == 1) {  // Otherwise two ranks are a node and send nothing.
      EXPECT_EQ(hook->compression(), expected_compression(hook_case, steps.back(), rank));
    }
  });
  std::vector<int64_t> expected_payload(world_size);
  for (size_t s = 0; s < steps.size(); ++s) {
    for (size_t b = 0; b < steps[s].size(); ++b) {
      SCOPED_TRACE(::testing::Message() << "step " << s << ", bucket of " << steps[s][b][0].numel());
      std::vector<at::Tensor> by_rank;
      for (const auto& of_rank : results) by_rank.push_back(of_rank[s][b]);
      expect_conformance(hook_case, steps[s][b], by_rank);
      for (int64_t rank = 0; rank < world_size; ++rank) {
        expected_payload[rank] += hook_case.payload_bytes(steps[s][b][0], rank, world_size);
      }
    }
  }
  EXPECT_EQ(payload_bytes, expected_payload);
}

using HookAndWorld = std::tuple<HookCase, int64_t>;
class HookConformance : public ::testing::TestWithParam<HookAndWorld> {};

TEST_P(HookConformance, AveragesBucketsOfAnySizeAndKeepsItsBuffersInOrder) {
  const auto& [hook_case, world_size] = GetParam();
  const std::vector<int64_t> sizes{0, 1, 7, 127, 128, 129, 255, 256, 257, 511, 512, 513, 1024, 200'003};
  // The Reducer rebuilds its buckets after a step: other sizes, and here fewer buckets.
  const std::vector<int64_t> rebuilt{300, 7, 5000, 513};
  at::manual_seed(world_size);
  check_steps(hook_case,
              {make_step(sizes, world_size, at::kFloat), make_step(rebuilt, world_size, at::kFloat),
               make_step(rebuilt, world_size, at::kFloat)},
              world_size);
}

TEST_P(HookConformance, KeepsTheDtypeOfTheBucket) {
  const auto& [hook_case, world_size] = GetParam();
  for (const auto dtype : {at::kDouble, at::kHalf, at::kBFloat16}) {
    SCOPED_TRACE(dtype);
    at::manual_seed(world_size);
    check_steps(hook_case, {make_step({0, 1, 127, 513, 5000}, world_size, dtype)}, world_size);
  }
}

class BucketInFlight : public ::testing::TestWithParam<HookCase> {};

// Two models that share a hook, for example. Rank 1 begins when the first bucket of rank 0 is in flight, and the second
// one has the same number.
TEST_P(BucketInFlight, IsAveragedBeforeTheNextBucketOfItsNumber) {
  constexpr int64_t kWorldSize = 2;
  at::manual_seed(2);
  const Step step = make_step({5000, 5000}, kWorldSize, at::kFloat);
  std::vector<std::vector<at::Tensor>> means(step.size(),
                                             std::vector<at::Tensor>(kWorldSize));  // By bucket, then rank.
  std::promise<void> in_flight;
  run_ranks(kWorldSize, [&](int64_t rank, const Group& group) {
    const auto hook = create_comm_hook(
        GetParam().name, {.process_group = group, .wire = GetParam().wire, .channel_size = GetParam().channel_size});
    if (rank == 1) in_flight.get_future().wait();
    std::vector<Future> futures;
    for (const Gradients& gradients : step) {
      auto bucket = make_bucket(gradients[rank].clone());
      futures.push_back(hook->runHook(bucket));
      if (rank == 0 && futures.size() == 1) in_flight.set_value();
    }
    for (size_t i = 0; i < step.size(); ++i) {
      futures[i]->waitAndThrow();
      means[i][rank] = hook->parseHookResult(futures[i]->value());
    }
  });
  for (size_t i = 0; i < step.size(); ++i) expect_conformance(GetParam(), step[i], means[i]);
}

INSTANTIATE_TEST_SUITE_P(Hooks, BucketInFlight, ::testing::ValuesIn(hook_cases()),
                         [](const auto& info) { return info.param.label(); });

// How ranks share the work and chunks share memory depends on the kind of codec and the number of levels, not on the
// format.
const std::set<std::string> kKinds{"allreduce",
                                   "bf16_compress",
                                   "quantize_per_tensor",
                                   "quantize_per_channel",
                                   "int8",
                                   "var5",
                                   "int8_in_one_node",
                                   "int8_nodes_of_2",
                                   "var5_nodes_of_2",
                                   "power_sgd",
                                   "batched_power_sgd"};

std::vector<HookCase> one_case_per_kind_of_codec() {
  std::vector<HookCase> cases = hook_cases();
  std::erase_if(cases, [](const HookCase& hook_case) { return !kKinds.contains(hook_case.label()); });
  TORCH_INTERNAL_ASSERT(cases.size() == kKinds.size());
  return cases;
}

// One case of a kind of codec in each world, and every other one in one of them.
std::vector<HookAndWorld> hooks_and_worlds() {
  std::vector<HookCase> others = hook_cases();
  std::erase_if(others, [](const HookCase& hook_case) { return kKinds.contains(hook_case.label()); });
  std::vector<HookAndWorld> all = test::in_turn(others, std::vector<int64_t>{3, 5, 2, 4, 8});
  for (const HookCase& hook_case : one_case_per_kind_of_codec()) {
    for (const int64_t world_size : {1, 2, 3, 4, 5, 8}) all.emplace_back(hook_case, world_size);
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Hooks, HookConformance, ::testing::ValuesIn(hooks_and_worlds()), [](const auto& info) {
  return std::get<0>(info.param).label() + "_world" + std::to_string(std::get<1>(info.param));
});

class LargeBuckets : public ::testing::TestWithParam<HookCase> {};

// Two buckets are in flight, each of several chunks, and take turns with the same memory.
TEST_P(LargeBuckets, DoNotMeetInMemory) {
  constexpr int64_t kWorldSize = 3;
  at::manual_seed(1);
  check_steps(GetParam(), {make_step({2'100'000, 7, 3'200'000}, kWorldSize, at::kFloat)}, kWorldSize);
}

INSTANTIATE_TEST_SUITE_P(Kinds, LargeBuckets, ::testing::ValuesIn(one_case_per_kind_of_codec()),
                         [](const auto& info) { return info.param.label(); });

TEST(HookCases, CoverEveryHookOfTheTable) {
  std::set<std::string> covered{"none"};
  for (const HookCase& hook_case : hook_cases()) covered.insert(hook_case.name);
  EXPECT_THAT(comm_hook_names(), ::testing::UnorderedElementsAreArray(covered));
}

}  // namespace
}  // namespace narrowcast::hooks
