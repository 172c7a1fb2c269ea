#include "trainer/ddp/reducer/backward_watch.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

namespace narrowcast {
namespace {

using std::chrono::steady_clock;
using ::testing::ElementsAre;

void spend(double seconds) {
  const std::chrono::duration<double> time(seconds);
  for (const auto begin = steady_clock::now(); steady_clock::now() - begin < time;) {
  }
}

// Two factors, of which the second gets its gradient first, and a parameter that is not used.
struct Factors {
  at::Tensor first = at::ones({4}).requires_grad_(true);
  at::Tensor second = at::ones({4}).requires_grad_(true);
  at::Tensor unused = at::ones({4}).requires_grad_(true);

  std::vector<at::Tensor> all() const { return {first, second, unused}; }

  // A backward pass with `seconds_between` seconds between the two gradients.
  void backward(double seconds_between = 0) const {
    const at::Tensor inner = first * 2;
    inner.register_hook([=](const at::Tensor& /*gradient*/) { spend(seconds_between); });
    (inner.exp() * second).sum().backward();
  }
};

TEST(AccumulatorHooksTest, TellOfEachGradientWhileTheyLive) {
  const Factors model;
  std::vector<size_t> calls;
  {
    const AccumulatorHooks hooks(model.all(), [&](size_t i) { calls.push_back(i); });
    model.backward();
    EXPECT_THAT(calls, ::testing::UnorderedElementsAre(0, 1));
  }
  model.backward();
  EXPECT_EQ(calls.size(), 2u);
}

TEST(GradientTimesTest, CountFromTheFirstGradientOfAPass) {
  const Factors model;
  GradientTimes times(model.all());
  EXPECT_THAT(times.seconds(), ElementsAre(0, 0, 0));
  times.begin_pass();
  model.backward(2e-3);
  EXPECT_EQ(times.passes(), 0) << "not yet at its end";
  times.end_pass();
  EXPECT_EQ(times.passes(), 1);
  EXPECT_GE(times.seconds()[0], 2e-3);
  EXPECT_THAT(times.seconds()[1], 0);
  EXPECT_THAT(times.seconds()[2], 0);
}

TEST(GradientTimesTest, TakeTheLeastOfAllPasses) {
  const Factors model;
  GradientTimes times(model.all());
  const auto seconds_after = [&](double seconds_between) {
    times.begin_pass();
    model.backward(seconds_between);
    times.end_pass();
    return times.seconds()[0];
  };
  const double first = seconds_after(2e-3);
  const double second = seconds_after(0);
  EXPECT_LE(second, first);
  EXPECT_EQ(seconds_after(second + 1e-3), second);
  EXPECT_EQ(times.passes(), 3);
}

TEST(GradientTimesTest, WatchOnlyPassesThatWereBegun) {
  const Factors model;
  GradientTimes times(model.all());
  model.backward(1e-3);
  times.end_pass();
  EXPECT_EQ(times.passes(), 0);
  times.begin_pass();
  times.end_pass();
  EXPECT_EQ(times.passes(), 0) << "it reached no parameter";
  times.begin_pass();
  model.backward();
  times.end_pass();
  const double seconds = times.seconds()[0];
  model.backward(seconds + 1e-3);
  times.end_pass();
  EXPECT_EQ(times.passes(), 1);
  EXPECT_EQ(times.seconds()[0], seconds);
}

}  // namespace
}  // namespace narrowcast
