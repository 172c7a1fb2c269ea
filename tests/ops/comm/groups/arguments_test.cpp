#include "ops/comm/groups/arguments.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/support/error_message.h"

namespace narrowcast::collectives {
namespace {

using ::testing::HasSubstr;

TEST(CheckWritable, TakesTensorsWhoseElementsHavePlacesOfTheirOwn) {
  for (const at::Tensor& tensor : {at::ones({3, 4}), at::ones({3, 4}).t(), at::ones({8}).slice(0, 0, 8, 2),
                                   at::ones({1}), at::ones({0}), at::ones({10}).as_strided({2, 3}, {3, 2})}) {
    EXPECT_NO_THROW(check_writable("x", tensor)) << tensor.sizes();
  }
  for (const at::Tensor& tensor : {at::ones({1}).expand({3}), at::ones({10}).as_strided({3, 3}, {1, 2})}) {
    EXPECT_THAT(testing::error_message<c10::ValueError>([&] { check_writable("x", tensor); }),
                HasSubstr("x has elements that overlap in memory"));
  }
}

TEST(Refusal, KeepsTheClassAndTheWordsOfAnError) {
  EXPECT_FALSE(refusal_of([] {}).has_value());
  for (const bool wrong_type : {false, true}) {
    const auto refusal = refusal_of([&] {
      TORCH_CHECK_TYPE(!wrong_type, "wrong type");
      TORCH_CHECK_VALUE(false, "wrong value");
    });
    ASSERT_TRUE(refusal.has_value());
    EXPECT_EQ(refusal->wrong_type, wrong_type);
    EXPECT_THAT(refusal->reason, HasSubstr(wrong_type ? "wrong type" : "wrong value"));
  }
}

TEST(Refusal, IsWhateverACheckOfLibTorchThrows) {
  const auto refusal = refusal_of([] { TORCH_CHECK_NOT_IMPLEMENTED(false, "no such kernel"); });
  ASSERT_TRUE(refusal.has_value());
  EXPECT_FALSE(refusal->wrong_type);
  EXPECT_EQ(refusal->reason, "no such kernel");
}

TEST(Refusal, IsThrownInTheSameWordsOnAllRanks) {
  EXPECT_EQ(testing::error_message<c10::TypeError>([] {
              throw_refusal({true, "x is Int"}, "mean", 3);
            }),
            "mean on rank 3: x is Int");
  EXPECT_EQ(testing::error_message<c10::ValueError>([] {
              refuse_together({false, "x is big"}, [] { TORCH_CHECK_WITH(DistBackendError, false, "rank 1 is gone"); });
            }),
            "x is big; the other ranks could not be informed: rank 1 is gone");
  EXPECT_EQ(testing::error_message<c10::TypeError>([] {
              refuse_together({false, "x is big"}, [] { throw_refusal({true, "x is Int"}, "mean", 0); });
            }),
            "mean on rank 0: x is Int");
}

}  // namespace
}  // namespace narrowcast::collectives
