#include "hooks/all_reduce.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "tests/support/error_message.h"
#include "tests/support/ranks.h"

namespace narrowcast::hooks {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::run_ranks;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

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
    if (rank == 1) return;  // Its group lives on, silent, until all ranks have returned.
    const auto future = all_reduce_then(group, at::ones({1000}), "test", [] { return at::ones({1}); });
    EXPECT_THAT(testing::error_message<c10::DistBackendError>([&] { future->waitAndThrow(); }),
                AllOf(HasSubstr("rank 0: all-reduce of hook test failed"), HasSubstr("imed out")));
  };
  run_ranks(2, body, {.timeout = std::chrono::milliseconds(500)});
}

}  // namespace
}  // namespace narrowcast::hooks
