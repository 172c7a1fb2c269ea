// Every hook on GPU buckets over NCCL, compared with the same plain computations as on the CPU, run on the GPU.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>

#include <narrowcast/hooks.h>
#include "ops/common/libtorch_versions.h"
#include "tests/hooks/all/bucket.h"
#include "tests/hooks/all/hook_cases.h"
#include "tests/support/busy_gpu.h"
#include "tests/support/nccl/nccl_ranks.h"

namespace narrowcast::hooks {
namespace {

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

constexpr int64_t kSizes[] = {1, 129, 1000, 300'000};
constexpr at::ScalarType kDtypes[] = {at::kFloat, at::kBFloat16, at::kHalf};

Gradients make_gradients(int64_t world_size, int64_t numel, at::ScalarType dtype) {
  at::manual_seed(numel);
  Gradients gradients;
  for (int64_t rank = 0; rank < world_size; ++rank) {
    gradients.push_back(at::randn({numel}).to(dtype).cuda());
  }
  return gradients;
}

// Two buckets per step, for three steps, as in training: the second one is enqueued before the first is waited for.
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

void expect_same_on_all_ranks(const at::Tensor& result, const Group& group) {
  at::Tensor own = result.contiguous();
  at::Tensor all = at::empty({group->getSize() * own.numel()}, own.options());
  libtorch::all_gather_single(group, all, own)->wait();
  EXPECT_TRUE(all.view({group->getSize(), own.numel()}).eq(own).all().item<bool>()) << "replicas differ";
}

// The type of run and between_long_kernels.
using Run = at::Tensor (*)(CommHook& hook, const at::Tensor& gradient);

// A bucket that is filled behind long kernels.
c10d::GradBucket late_bucket(const at::Tensor& gradient, size_t index) {
  const at::Tensor buffer = at::full_like(gradient, 99);
  test::keep_gpu_busy();
  buffer.copy_(gradient);
  return make_bucket(buffer, index, 2);
}

// The result of a bucket to which only the future holds a reference, read behind long kernels.
at::Tensor late_result(CommHook& hook, c10::intrusive_ptr<c10::ivalue::Future> future) {
  future->wait();
  test::keep_gpu_busy();
  const at::Tensor result = hook.parseHookResult(future->value()).clone();
  future.reset();
  test::overwrite_free_memory(result);
  return result;
}

// If an event is missing, one stream reads before another has written, or writes before another has read. The futures
// hold the buckets until the current stream has waited. CudaHookStream tests whether their memory could be reused
// before.
at::Tensor between_long_kernels(CommHook& hook, const at::Tensor& gradient) {
  at::Tensor result;
  for (int step = 0; step < 2; ++step) {
    auto first = std::make_optional(late_bucket(gradient, 0));
    auto first_future = hook.runHook(*first);
    auto second = std::make_optional(late_bucket(gradient, 1));
    auto second_future = hook.runHook(*second);
    first.reset();
    second.reset();
    test::overwrite_free_memory(gradient);
    const at::Tensor first_result = late_result(hook, std::move(first_future));
    result = late_result(hook, std::move(second_future));
    EXPECT_TRUE(at::equal(first_result, result));
  }
  return result;
}

void check(const HookCase& value, const Gradients& gradients, int64_t rank, const Group& group, Run run_hook = run) {
  const auto hook =
      create_comm_hook(value.name, {.process_group = group, .wire = value.wire, .channel_size = value.channel_size});
  const at::Tensor result = run_hook(*hook, gradients[rank]);
  ASSERT_EQ(result.scalar_type(), gradients[rank].scalar_type());
  const at::Tensor expected = value.expected(gradients, rank);
  if (value.tolerance) {
    const at::Tensor error = (result.to(at::kDouble) - expected.to(at::kDouble)).abs();
    EXPECT_TRUE((error <= value.tolerance(gradients)).all().item<bool>());
  } else {
    EXPECT_TRUE(at::equal(result, expected));
  }
  if (value.averages) {
    expect_same_on_all_ranks(result, group);
  }
}

void check_sizes_and_dtypes(const HookCase& value, int64_t rank, const Group& group) {
  for (const auto dtype : kDtypes) {
    for (const int64_t numel : kSizes) {
      SCOPED_TRACE(::testing::Message() << numel << " of type " << dtype);
      check(value, make_gradients(group->getSize(), numel, dtype), rank, group);
    }
  }
}

// One suite for each world size, because ctest applies its time limit to each suite. Ranks that share a GPU take turns
// on it, at about 10 ms for every collective.
class CudaConformance : public ::testing::TestWithParam<HookCase> {
 protected:
  static void check_on(int64_t world_size) {
    testing::run_nccl_ranks(world_size,
                            [](int64_t rank, const Group& group) { check_sizes_and_dtypes(GetParam(), rank, group); });
  }
};

class CudaConformanceOfTwo : public CudaConformance {};
class CudaConformanceOfFour : public CudaConformance {};

TEST_P(CudaConformanceOfTwo, GivesWhatItShouldOnEveryRank) { check_on(2); }
TEST_P(CudaConformanceOfFour, GivesWhatItShouldOnEveryRank) { check_on(4); }

std::string name_of(const ::testing::TestParamInfo<HookCase>& info) { return info.param.label(); }

INSTANTIATE_TEST_SUITE_P(Hooks, CudaConformanceOfTwo, ::testing::ValuesIn(gpu_hook_cases()), name_of);
INSTANTIATE_TEST_SUITE_P(Hooks, CudaConformanceOfFour, ::testing::ValuesIn(gpu_hook_cases()), name_of);

// Calls body(case) for each hook, and names the hook if that fails.
template <class Body>
void for_each_hook(const Body& body) {
  for (const HookCase& value : gpu_hook_cases()) {
    SCOPED_TRACE(value.label());
    body(value);
  }
}

TEST(CudaConformanceOfPeers, GivesWhatItShouldWhereRanksUseEachOthersMemory) {
  testing::run_peer_ranks(2, [](int64_t rank, const Group& group) {
    for_each_hook([&](const HookCase& value) { check_sizes_and_dtypes(value, rank, group); });
  });
}

TEST(CudaConformanceBetweenLongKernels, GivesWhatItShouldOnEveryRank) {
  testing::run_nccl_ranks(2, [](int64_t rank, const Group& group) {
    for_each_hook([&](const HookCase& value) {
      check(value, make_gradients(2, 300'000, at::kFloat), rank, group, between_long_kernels);
    });
  });
}

}  // namespace
}  // namespace narrowcast::hooks
