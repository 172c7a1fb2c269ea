#include "trainer/ddp/reduction_counter.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

namespace narrowcast {
namespace {

TEST(ReductionCounterTest, CountsArmedBackwardPassesOnce) {
  const at::Tensor a = at::ones({1}).requires_grad_(true);
  const at::Tensor b = at::ones({1}).requires_grad_(true);
  ReductionCounter counter({a, b});
  (a * b).backward();
  EXPECT_EQ(counter.count(), 0);
  counter.arm();
  EXPECT_EQ(counter.count(), 0);
  (a * b).backward();
  EXPECT_EQ(counter.count(), 1);
  (a * b).backward();
  EXPECT_EQ(counter.count(), 1);
}

TEST(ReductionCounterTest, IsNotDisarmedByGradientsTakenAside) {
  const at::Tensor a = at::ones({1}).requires_grad_(true);
  ReductionCounter counter({a});
  counter.arm();
  torch::autograd::grad({a * 2}, {a});
  EXPECT_EQ(counter.count(), 0);
  (a * 2).backward();
  EXPECT_EQ(counter.count(), 1);
}

TEST(ReductionCounterTest, GoesOnCountingFromANumber) {
  const at::Tensor a = at::ones({1}).requires_grad_(true);
  ReductionCounter counter({a});
  counter.set_count(5);
  counter.arm();
  (a * 2).backward();
  EXPECT_EQ(counter.count(), 6);
}

TEST(ReductionCounterTest, LeavesTheParametersWhenItGoes) {
  const at::Tensor a = at::ones({1}).requires_grad_(true);
  { ReductionCounter counter({a}); }
  EXPECT_NO_THROW((a * 2).backward());
  EXPECT_EQ(a.grad().item<float>(), 2.0f);
}

}  // namespace
}  // namespace narrowcast
