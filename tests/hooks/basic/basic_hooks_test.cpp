#include "hooks/basic/basic_hooks.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <stdexcept>
#include <string>

#include <narrowcast/hooks.h>
#include "tests/hooks/all/bucket.h"
#include "tests/hooks/all/run_hook.h"
#include "tests/support/error_message.h"
#include "tests/support/ranks.h"

namespace narrowcast::hooks {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;
using testing::run_ranks;

TEST(AllReduceThen, RunsTheContinuationOnTheSum) {
  run_ranks(3, [](int64_t rank, const Group& group) {
    const at::Tensor tensor = at::full({5}, rank + 1, at::kFloat);
    const auto future = all_reduce_then(group, tensor, "test", [tensor] { return tensor * 10; });
    future->waitAndThrow();
    EXPECT_TRUE(at::equal(future->value().toTensor(), at::full({5}, 60.0F)));
    EXPECT_TRUE(at::equal(tensor, at::full({5}, 6.0F))) << "in place";
  });
}

TEST(AllReduceThen, FailsWithWhatTheContinuationThrows) {
  run_ranks(1, [](int64_t, const Group& group) {
    const auto future =
        all_reduce_then(group, at::ones({1}), "test", []() -> at::Tensor { throw std::logic_error("on purpose"); });
    EXPECT_THROW(future->waitAndThrow(), std::logic_error);
  });
}

TEST(AllReduceThen, NamesRankAndHookWhenTheCollectiveFails) {
  const auto body = [](int64_t rank, const Group& group) {
    if (rank == 1) return;  // Its group lives on and sends nothing until all ranks have returned.
    const auto future = all_reduce_then(group, at::ones({1000}), "test", [] { return at::ones({1}); });
    EXPECT_THAT(testing::error_message<c10::DistBackendError>([&] { future->waitAndThrow(); }),
                AllOf(HasSubstr("rank 0: all-reduce of hook test failed"), HasSubstr("imed out")));
  };
  run_ranks(2, body, {.timeout = std::chrono::milliseconds(500)});
}

// With two ranks the order of addition is unique, so bits can be compared.
TEST(AllReduceHook, DividesBeforeItAdds) {
  at::manual_seed(0);
  const std::vector<at::Tensor> gradients{at::randn({1000}), at::randn({1000})};
  for (const at::Tensor& result : run_hook("allreduce", gradients)) {
    EXPECT_TRUE(at::equal(result, gradients[0] / 2 + gradients[1] / 2));
  }
}

TEST(AllReduceHook, DoesNotOverflowWhereTheMeanExists) {
  const std::vector<at::Tensor> gradients(4, at::full({10}, 3e38F));
  for (const at::Tensor& result : run_hook("allreduce", gradients)) EXPECT_TRUE(at::equal(result, gradients[0]));
}

class Compress : public ::testing::TestWithParam<std::tuple<const char*, at::ScalarType>> {};

// With two ranks the order of addition is unique, so bits can be compared.
TEST_P(Compress, CastsDividesAddsAndCopiesBack) {
  const auto [name, dtype] = GetParam();
  at::manual_seed(0);
  for (const auto bucket_dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    const std::vector<at::Tensor> gradients{at::randn({1000}).to(bucket_dtype), at::randn({1000}).to(bucket_dtype)};
    const at::Tensor expected = (gradients[0].to(dtype) / 2 + gradients[1].to(dtype) / 2).to(bucket_dtype);
    for (const at::Tensor& result : run_hook(name, gradients)) {
      EXPECT_EQ(result.scalar_type(), bucket_dtype);
      EXPECT_TRUE(at::equal(result, expected)) << bucket_dtype;
    }
  }
}

TEST_P(Compress, CastsBeforeItDivides) {
  const auto [name, dtype] = GetParam();
  // 1e5 is beyond half precision, although the mean, 5e4, is not; bfloat16 has the range of float.
  const at::Tensor result = run_hook(name, {at::full({1}, 1e5F), at::zeros({1})})[0];
  EXPECT_EQ(result.isinf().item<bool>(), dtype == at::kHalf);
}

INSTANTIATE_TEST_SUITE_P(Hooks, Compress,
                         ::testing::Values(std::make_tuple("fp16_compress", at::kHalf),
                                           std::make_tuple("bf16_compress", at::kBFloat16)));

TEST(DtypeOf, IsThatOfFormatsWithoutBlocks) {
  EXPECT_EQ(dtype_of(WireFormat::kBf16), at::kBFloat16);
  EXPECT_EQ(dtype_of(WireFormat::kFp16), at::kHalf);
  EXPECT_EQ(dtype_of(WireFormat::kFp32), at::kFloat);
  EXPECT_THAT(testing::error_message<c10::ValueError>([] { dtype_of(WireFormat::kInt8B128); }),
              ::testing::HasSubstr("must be a format without blocks, but is int8_b128"));
}

TEST(NoopHook, ReturnsTheBucketItselfAtOnce) {
  testing::run_ranks(1, [](int64_t, const auto& group) {
    const auto hook = create_comm_hook("noop", {group});
    auto bucket = make_bucket(at::ones({3}));
    const auto future = hook->runHook(bucket);
    ASSERT_TRUE(future->completed());
    EXPECT_TRUE(hook->parseHookResult(future->value()).is_same(bucket.getBuffer()));
    EXPECT_EQ(hook->payload_bytes_sent(), 0);
  });
}

TEST(NoopHook, LetsReplicasDiffer) {
  testing::run_ranks(1, [](int64_t, const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
    EXPECT_FALSE(create_comm_hook("noop", {group})->keeps_replicas_equal());
    EXPECT_TRUE(create_comm_hook("allreduce", {group})->keeps_replicas_equal());
  });
}

}  // namespace
}  // namespace narrowcast::hooks
