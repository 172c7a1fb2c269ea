#include "trainer/ddp/reducer/backward_watch.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/engine.h>

#include <stdexcept>

namespace narrowcast {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

at::Tensor parameter() { return at::ones({1}).requires_grad_(true); }

// Returns `product`, whose backward pass then throws.
at::Tensor failing(const at::Tensor& product) {
  at::Tensor result = product * 1;
  result.register_hook([](const at::Tensor& /*gradient*/) { throw std::logic_error("on purpose"); });
  return result;
}

TEST(BackwardWatchTest, CountsArmedBackwardPassesOnce) {
  const at::Tensor a = parameter();
  const at::Tensor b = parameter();
  BackwardWatch watch({a, b});
  (a * b).backward();
  EXPECT_EQ(watch.count(), 0);
  watch.arm();
  EXPECT_EQ(watch.count(), 0);
  (a * b).backward();
  EXPECT_EQ(watch.count(), 1);
  (a * b).backward();
  EXPECT_EQ(watch.count(), 1);
}

TEST(BackwardWatchTest, IsNotDisarmedByGradientsTakenAside) {
  const at::Tensor a = parameter();
  BackwardWatch watch({a});
  watch.arm();
  torch::autograd::grad({a * 2}, {a});
  EXPECT_EQ(watch.count(), 0);
  (a * 2).backward();
  EXPECT_EQ(watch.count(), 1);
}

TEST(BackwardWatchTest, GoesOnCountingFromANumber) {
  const at::Tensor a = parameter();
  BackwardWatch watch({a});
  watch.set_count(5);
  watch.arm();
  (a * 2).backward();
  EXPECT_EQ(watch.count(), 6);
}

TEST(BackwardWatchTest, LeavesTheParametersWhenItGoes) {
  const at::Tensor a = parameter();
  { BackwardWatch watch({a}); }
  EXPECT_NO_THROW((a * 2).backward());
  EXPECT_EQ(a.grad().item<float>(), 2.0f);
}

TEST(BackwardWatchTest, TellsWhichParametersWereNotReached) {
  const at::Tensor a = parameter();
  const at::Tensor b = parameter();
  const at::Tensor c = parameter();
  BackwardWatch watch({a, b, c});
  watch.arm();
  (a * c).backward();
  EXPECT_THAT(watch.unreached(), ElementsAre(1));
  (b * 2).backward();
  EXPECT_THAT(watch.unreached(), IsEmpty());
  watch.arm();
  EXPECT_THAT(watch.unreached(), ElementsAre(0, 1, 2));
}

TEST(BackwardWatchTest, ExpectsTheParametersThatWereReached) {
  const at::Tensor a = parameter();
  const at::Tensor b = parameter();
  BackwardWatch watch({a, b});
  watch.arm();
  (a * 2).backward();
  watch.expect_reached();
  EXPECT_THAT(watch.unreached(), IsEmpty());
  watch.arm();
  (b * 2).backward();
  EXPECT_THAT(watch.unreached(), ElementsAre(0));
}

TEST(BackwardWatchTest, APassThatThrowsAfterItsFirstGradientHasNotEnded) {
  const at::Tensor a = parameter();
  const at::Tensor b = parameter();
  BackwardWatch watch({a, b});
  EXPECT_FALSE(watch.has_not_ended());
  watch.arm();
  // `a` gets its gradient first, as it is used last.
  EXPECT_THROW((failing(b * 2) * a).backward(), std::logic_error);
  EXPECT_TRUE(watch.has_not_ended());
  watch.arm();
  (a * b).backward();
  EXPECT_FALSE(watch.has_not_ended());
}

// Like the Reducer's callback, which waits for averages.
TEST(BackwardWatchTest, APassWhoseCallbackThrowsHasNotEnded) {
  const at::Tensor a = parameter();
  BackwardWatch watch({a});
  const at::Tensor product = a * 2;
  product.register_hook([](const at::Tensor& /*gradient*/) {
    torch::autograd::Engine::get_default_engine().queue_callback([] { throw std::logic_error("on purpose"); });
  });
  watch.arm();
  EXPECT_THROW(product.backward(), std::logic_error);
  EXPECT_TRUE(watch.has_not_ended());
}

}  // namespace
}  // namespace narrowcast
