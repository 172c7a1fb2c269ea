#include "trainer/ddp/output_sink.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace narrowcast {
namespace {

TEST(OutputSinkTest, PassesValuesAndGradientsThrough) {
  const at::Tensor leaf = at::ones({3}).requires_grad_(true);
  const at::Tensor output = leaf * 2;
  const std::vector<at::Tensor> results = pass_through_sink({output}, nullptr);
  ASSERT_EQ(results.size(), 1u);
  EXPECT_TRUE(at::equal(results[0], output));
  results[0].sum().backward();
  EXPECT_TRUE(at::equal(leaf.grad(), at::full({3}, 2.0)));
}

TEST(OutputSinkTest, CallsBackOncePerBackward) {
  int calls = 0;
  const at::Tensor leaf = at::ones({3}).requires_grad_(true);
  const auto results = pass_through_sink({leaf * 2, leaf * 3}, [&] { ++calls; });
  EXPECT_EQ(calls, 0);
  (results[0] + results[1]).sum().backward();
  EXPECT_EQ(calls, 1);
}

TEST(OutputSinkTest, ReachesOutputsThatTheLossDoesNotUse) {
  const at::Tensor used = at::ones({1}).requires_grad_(true);
  const at::Tensor unused = at::ones({1}).requires_grad_(true);
  const at::Tensor branch = unused * 2;
  int reached = 0;
  branch.register_hook([&](const at::Tensor& gradient) { reached += gradient.defined() ? 100 : 1; });
  const auto results = pass_through_sink({used * 2, branch}, nullptr);
  results[0].sum().backward();
  EXPECT_EQ(reached, 1);  // Once, with an undefined gradient.
  EXPECT_FALSE(unused.grad().defined());
  EXPECT_TRUE(used.grad().defined());
}

TEST(OutputSinkTest, LeavesOutputsWithoutAHistory) {
  const at::Tensor leaf = at::ones({1}).requires_grad_(true);
  const at::Tensor constant = at::ones({1});
  const auto results = pass_through_sink({leaf, constant, at::Tensor()}, [] { FAIL() << "nothing to run"; });
  EXPECT_TRUE(results[0].is_same(leaf));
  EXPECT_TRUE(results[1].is_same(constant));
  EXPECT_FALSE(results[2].defined());
}

TEST(OutputSinkTest, OutputsCanBeChangedInPlace) {
  const at::Tensor leaf = at::ones({2}).requires_grad_(true);
  const auto results = pass_through_sink({leaf * 2, leaf * 3}, nullptr);
  EXPECT_NO_THROW(results[0].mul_(5).sum().backward());
  EXPECT_TRUE(at::equal(leaf.grad(), at::full({2}, 10.0)));
}

}  // namespace
}  // namespace narrowcast
