#include "hooks/table/exchange_watch.h"

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "hooks/row/execution.h"
#include "tests/support/simulated_streams.h"

namespace narrowcast::hooks {
namespace {

using testing::SimulatedStreams;

// The link takes 4 of 10 ms.
TEST(PredictedExchanges, TellTheLinkFromTheRest) {
  const PredictedExchanges one{.seconds = 10e-3, .sent = 4e-3, .count = 1};
  EXPECT_NEAR(one.link_factor(14e-3), 2, 1e-9);
  EXPECT_NEAR(one.link_factor(8e-3), 0.5, 1e-9);
  EXPECT_EQ(one.link_factor(3e-3), 1) << "less than the rest alone, so the rest was overestimated";
  EXPECT_EQ(one.link_factor(10.9e-3), 1) << "less than machines differ";
  EXPECT_EQ(one.link_factor(9.1e-3), 1);
  const PredictedExchanges several{.seconds = 10e-3, .sent = 4e-3, .count = 3};
  EXPECT_NEAR(several.link_factor(14e-3), 2, 1e-9) << "at least, if nothing was done meanwhile";
  EXPECT_EQ(several.link_factor(6e-3), 1) << "the rest takes so long by itself";
  EXPECT_NEAR(several.link_factor(2e-3), 0.5, 1e-9) << "at most";
}

// A step whose clock stands at these times when all-reduces begin and end.
TEST(WatchByClock, LooksAtTheLastStretchOfAStep) {
  double time = 0;
  const auto watch = watch_by_clock([&] { return time; });
  const auto at_time = [&](double now, const auto& call) {
    time = now;
    call();
  };
  const PredictedExchanges one{.seconds = 2, .sent = 2, .count = 1};
  EXPECT_EQ(watch->take_least(), ExchangeWatch::kNothingSeen);
  at_time(0, [&] { watch->begin(one, at::kCPU); });
  at_time(50, [&] { watch->end(0); });
  at_time(60, [&] { watch->begin(one, at::kCPU); });
  at_time(66, [&] { watch->end(0); });
  watch->end_step({.seconds = 4, .sent = 4, .count = 2});
  EXPECT_DOUBLE_EQ(watch->take_least(), 3) << "6 s instead of 2";
  EXPECT_EQ(watch->take_least(), ExchangeWatch::kNothingSeen);

  at_time(70, [&] { watch->begin(one, at::kCPU); });
  at_time(76, [&] { watch->end(0); });
  watch->end_step({.seconds = 4.5, .sent = 4.5, .count = 2});
  EXPECT_EQ(watch->take_least(), ExchangeWatch::kNothingSeen) << "less than half of the step";
}

// All-reduces of simulated work, a millisecond each, on streams beside the backward pass.
class WatchStreams : public ::testing::Test {
 protected:
  WatchStreams() { SimulatedStreams::reset(); }
  ~WatchStreams() override { SimulatedStreams::reset(); }

  // A backward pass that takes `before` ms, and then an all-reduce beside it that takes `milliseconds`.
  void all_reduce(int before, int milliseconds) {
    for (int i = 0; i < before; ++i) enqueue("backward");
    const PredictedExchanges predicted{.seconds = 2e-3, .sent = 2e-3, .count = 1};
    const int64_t exchange = watch_->begin(predicted, testing::kSimulatedDevice);
    const at::Tensor bucket = SimulatedStreams::tensor();
    const auto future = streams_.run(HookStreams::place_of(static_cast<size_t>(exchange)), bucket, [&] {
      for (int i = 0; i < milliseconds; ++i) enqueue("all-reduce");
      return bucket;
    });
    futures_.push_back(future->then(
        [watch = watch_, exchange](c10::ivalue::Future& done) {
          watch->end(exchange);
          return done.value();
        },
        c10::TensorType::get()));
  }

  // The optimizer's step waits for all-reduces.
  void end_step(int64_t all_reduces) {
    for (const auto& future : futures_) future->wait();
    futures_.clear();
    const double seconds = 2e-3 * static_cast<double>(all_reduces);
    watch_->end_step({.seconds = seconds, .sent = seconds, .count = all_reduces});
  }

  std::shared_ptr<ExchangeWatch> watch_ = watch_streams(testing::kSimulatedDevice);

 private:
  void enqueue(const std::string& what) { SimulatedStreams::enqueue(what + " " + std::to_string(works_++)); }

  HookStreams streams_;
  std::vector<c10::intrusive_ptr<c10::ivalue::Future>> futures_;
  int works_ = 0;
};

TEST_F(WatchStreams, LooksAtTheLastStretchOfAStep) {
  all_reduce(1, 2);
  all_reduce(4, 6);  // Begins 2 ms after the first one has ended.
  end_step(2);
  EXPECT_DOUBLE_EQ(watch_->take_least(), 3) << "6 ms instead of 2";
  EXPECT_EQ(watch_->take_least(), ExchangeWatch::kNothingSeen);
}

TEST_F(WatchStreams, TakesAllReducesSideBySideAsOneStretch) {
  all_reduce(1, 9);
  all_reduce(4, 9);
  end_step(2);
  EXPECT_DOUBLE_EQ(watch_->take_least(), 13.0 / 4) << "the second one begins after 4 of the 9 ms";
}

TEST_F(WatchStreams, DoesNotCountAStepOnOtherDevicesOrThatFailed) {
  all_reduce(1, 6);
  watch_->begin({.seconds = 1e-6, .sent = 1e-6, .count = 1}, at::kCPU);
  end_step(1);
  EXPECT_EQ(watch_->take_least(), ExchangeWatch::kNothingSeen);
  all_reduce(1, 6);
  watch_->give_up(watch_->begin({.seconds = 1e-6, .sent = 1e-6, .count = 1}, testing::kSimulatedDevice));
  end_step(1);
  EXPECT_EQ(watch_->take_least(), ExchangeWatch::kNothingSeen);
  all_reduce(1, 6);
  watch_->end(0);  // It began in an earlier step.
  end_step(1);
  EXPECT_DOUBLE_EQ(watch_->take_least(), 3);
}

TEST_F(WatchStreams, CountsAStepOnceTheDeviceHasReachedIt) {
  all_reduce(1, 6);
  SimulatedStreams::hold_events();
  end_step(1);
  EXPECT_EQ(watch_->take_least(), ExchangeWatch::kNothingSeen);
  all_reduce(1, 8);
  end_step(1);
  SimulatedStreams::release_events();
  all_reduce(1, 4);
  end_step(1);
  EXPECT_DOUBLE_EQ(watch_->take_least(), 2) << "4 ms instead of 2, the least of the last two steps";
}

}  // namespace
}  // namespace narrowcast::hooks
