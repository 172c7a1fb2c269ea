// Every hook on GPU buckets over NCCL, against the same plain computations as on the CPU, carried out on the GPU.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "hooks/factory.h"
#include "tests/hooks/bucket.h"
#include "tests/hooks/hook_cases.h"
#include "tests/support/nccl/nccl_ranks.h"

namespace narrowcast::hooks {
namespace {

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

constexpr int64_t kSizes[] = {1, 129, 1000, 300'000};

Gradients make_gradients(int64_t world_size, int64_t numel) {
  at::manual_seed(numel);
  Gradients gradients;
  for (int64_t rank = 0; rank < world_size; ++rank) {
    gradients.push_back(at::randn({numel}).cuda());
  }
  return gradients;
}

// Two buckets a step, for three steps, as in training: the second one is enqueued before the first is waited for.
at::Tensor run(CommHook& hook, const at::Tensor& gradient) {
  at::Tensor result;
  for (int step = 0; step < 3; ++step) {
    auto first = make_bucket(gradient.clone(), 0, 2);
    auto second = make_bucket(gradient.clone(), 1, 2);
    const auto first_future = hook.runHook(first);
    const auto second_future = hook.runHook(second);
    first_future->wait();
    second_future->wait();
    result = hook.parseHookResult(second_future->value());
    EXPECT_TRUE(at::equal(hook.parseHookResult(first_future->value()), result));
  }
  return result;
}

void check(const HookCase& value, int64_t rank, const Group& group, int64_t numel) {
  const Gradients gradients = make_gradients(group->getSize(), numel);
  const auto hook = create_comm_hook(value.name, {group});
  const at::Tensor result = run(*hook, gradients[rank]);
  const at::Tensor expected = value.expected(gradients, rank);
  if (value.tolerance) {
    const at::Tensor error = (result.to(at::kDouble) - expected.to(at::kDouble)).abs();
    EXPECT_TRUE((error <= value.tolerance(gradients)).all().item<bool>()) << value.name << " " << numel;
  } else {
    EXPECT_TRUE(at::equal(result, expected)) << value.name << " " << numel;
  }
  if (value.averages) {
    at::Tensor all = at::empty({group->getSize() * numel}, result.options());
    at::Tensor own = result.contiguous();
    group->_allgather_base(all, own)->wait();
    EXPECT_TRUE(all.view({group->getSize(), numel}).eq(own).all().item<bool>()) << value.name << " " << numel;
  }
}

class CudaConformance : public ::testing::TestWithParam<std::tuple<HookCase, int64_t>> {};

TEST_P(CudaConformance, GivesWhatItShouldOnEveryRank) {
  if (const std::string reason = testing::why_no_nccl_ranks(); !reason.empty()) {
    GTEST_SKIP() << reason;
  }
  const auto& [value, world_size] = GetParam();
  const auto codes = testing::fork_nccl_ranks(world_size, [&, &value = value](int64_t rank, const Group& group) {
    for (const int64_t numel : kSizes) {
      check(value, rank, group, numel);
    }
  });
  for (const int code : codes) {
    EXPECT_EQ(code, testing::kRankPassed);
  }
}

INSTANTIATE_TEST_SUITE_P(Hooks, CudaConformance,
                         ::testing::Combine(::testing::ValuesIn(hook_cases()), ::testing::Values(2, 4)),
                         [](const auto& info) {
                           return std::get<0>(info.param).name + "_" + std::to_string(std::get<1>(info.param));
                         });

}  // namespace
}  // namespace narrowcast::hooks
