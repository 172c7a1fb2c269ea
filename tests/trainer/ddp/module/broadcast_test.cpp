#include "trainer/ddp/module/broadcast.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/support/ranks.h"

namespace narrowcast {
namespace {

using testing::run_ranks;

constexpr at::ScalarType kDtypes[] = {at::kFloat,          at::kDouble,       at::kHalf,
                                      at::kBFloat16,       at::kByte,         at::kChar,
                                      at::kShort,          at::kInt,          at::kLong,
                                      at::kBool,           at::kUInt16,       at::kUInt32,
                                      at::kUInt64,         at::kComplexFloat, at::kComplexDouble,
                                      at::kFloat8_e4m3fn,  at::kFloat8_e5m2,  at::kFloat8_e4m3fnuz,
                                      at::kFloat8_e5m2fnuz};

// For each dtype: [2, 3] with numbers from `first` on, one with other strides, a scalar and an empty tensor.
std::vector<at::Tensor> tensors_from(int64_t first) {
  std::vector<at::Tensor> tensors;
  for (const at::ScalarType dtype : kDtypes) {
    const at::Tensor numbers = at::arange(first, first + 6, at::kFloat).view({2, 3});
    tensors.push_back(numbers.to(dtype));
    tensors.push_back(numbers.to(dtype).t());
    tensors.push_back(at::full({}, static_cast<double>(first), at::kFloat).to(dtype));
    tensors.push_back(at::zeros({0, 3}).to(dtype));
  }
  return tensors;
}

at::Tensor as_bytes(const at::Tensor& tensor) { return tensor.contiguous().flatten().view(at::kByte); }

class BroadcastTest : public ::testing::TestWithParam<int64_t> {};

TEST_P(BroadcastTest, AllDtypesGetTheValuesOfRankZero) {
  const std::vector<at::Tensor> expected = tensors_from(1);
  run_ranks(GetParam(), [&](int64_t rank, const ProcessGroupPtr& group) {
    const std::vector<at::Tensor> tensors = tensors_from(rank + 1);
    broadcast_from_rank_0(group, tensors, "broadcast");
    for (size_t i = 0; i < tensors.size(); ++i) {
      EXPECT_TRUE(as_bytes(tensors[i]).equal(as_bytes(expected[i]))) << tensors[i].scalar_type() << tensors[i].sizes();
      EXPECT_EQ(tensors[i].strides(), expected[i].strides());
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, BroadcastTest, ::testing::Values(1, 2, 3, 4));

TEST(Broadcast, TakesTheValuesOfAnyRank) {
  run_ranks(3, [&](int64_t rank, const ProcessGroupPtr& group) {
    for (int64_t from = 0; from < 3; ++from) {
      const at::Tensor tensor = at::full({2}, static_cast<double>(rank));
      broadcast_from_rank(from, group, {tensor}, "broadcast");
      EXPECT_TRUE(tensor.equal(at::full({2}, static_cast<double>(from)))) << tensor;
    }
  });
}

// A conjugate view negates the imaginary parts in its memory.
TEST(Broadcast, AConjugateViewIsSentAsItReads) {
  run_ranks(2, [&](int64_t rank, const ProcessGroupPtr& group) {
    const at::Tensor tensor = at::full({2}, c10::complex<float>(1, static_cast<float>(rank + 1)), at::kComplexFloat);
    broadcast_from_rank_0(group, {tensor.conj()}, "broadcast");
    EXPECT_TRUE(tensor.equal(at::full({2}, c10::complex<float>(1, 1), at::kComplexFloat))) << tensor;
  });
}

TEST(Broadcast, OfNothingSendsNothing) { EXPECT_NO_THROW(broadcast_from_rank_0(/*group=*/nullptr, {}, "broadcast")); }

}  // namespace
}  // namespace narrowcast
