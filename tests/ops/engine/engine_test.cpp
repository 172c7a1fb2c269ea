#include "ops/engine/engine.h"

#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <mutex>

#include "tests/ops/engine/two_hops.h"
#include "tests/support/ranks.h"

namespace narrowcast::engine {
namespace {

using ::testing::ElementsAre;
using testing::run_ranks;
using testing::wait_for_ranks;
using Future = c10::intrusive_ptr<c10::ivalue::Future>;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

using WorldAndCount = std::tuple<int64_t, int64_t>;
class EngineExchange : public ::testing::TestWithParam<WorldAndCount> {};

TEST_P(EngineExchange, DeliversSeveralQueuedExchangesInOrder) {
  const auto [world_size, count] = GetParam();
  run_ranks(world_size, [&, world_size = world_size, count = count](int64_t rank, const Group& group) {
    const auto engine = Engine::for_group(group);
    std::mutex mutex;
    std::vector<int64_t> completed;
    std::vector<Future> futures;
    for (int64_t number = 0; number < 6; ++number) {
      futures.push_back(engine->submit(std::make_shared<TwoHops>(number, count)));
      futures.back()->addCallback([&, number](c10::ivalue::Future&) {
        const std::lock_guard<std::mutex> lock(mutex);
        completed.push_back(number);
      });
    }
    for (int64_t number = 0; number < 6; ++number) {
      futures[number]->waitAndThrow();
      EXPECT_EQ(futures[number]->value().toTensor().item<int64_t>(), expected_sum(number, count, rank, world_size));
    }
    const auto last = engine->submit(std::make_shared<TwoHops>(0, count));  // Callbacks before it have all run.
    last->waitAndThrow();
    const std::lock_guard<std::mutex> lock(mutex);
    EXPECT_THAT(completed, ElementsAre(0, 1, 2, 3, 4, 5));
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, EngineExchange,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4, 5, 8), ::testing::Values(0, 1, 100'003)));

// What happens on an engine's thread: written there, read when it is idle.
class Events {
 public:
  Observer observe(int64_t number) {
    const auto record = [this, number](const char* what) {
      return [this, what, number] { events_.push_back(what + std::to_string(number)); };
    };
    return {record("start "), record("advance "), record("finish ")};
  }
  const std::vector<std::string>& all() const { return events_; }

 private:
  std::vector<std::string> events_;
};

TEST(Engine, SendsBothHopsOfTwoExchangesBeforeItFinishesTheOlderAndStartsNoThird) {
  run_ranks(2, [](int64_t rank, const Group& group) {
    const auto engine = Engine::for_group(group);
    if (rank == 1) {  // Takes part only after rank 0 has started exchange 1: exchange 0 cannot have advanced.
      wait_for_ranks(group);
      for (int64_t number = 0; number < 4; ++number) engine->submit(std::make_shared<TwoHops>(number, 1000));
      engine->submit(std::make_shared<TwoHops>(4, 1000))->waitAndThrow();
      return;
    }
    Events events;
    std::promise<void> all_submitted;
    std::promise<void> second_started;
    auto first = events.observe(0);
    first.on_start = [record = first.on_start, wait = all_submitted.get_future().share()] {
      wait.wait();
      record();
    };
    auto second = events.observe(1);
    second.on_start = [&, record = second.on_start] {
      record();
      second_started.set_value();
    };
    const auto oldest = engine->submit(std::make_shared<TwoHops>(0, 1000, first));
    engine->submit(std::make_shared<TwoHops>(1, 1000, second));
    for (int64_t number = 2; number < 4; ++number) {
      engine->submit(std::make_shared<TwoHops>(number, 1000, events.observe(number)));
    }
    const auto last = engine->submit(std::make_shared<TwoHops>(4, 1000));
    all_submitted.set_value();
    second_started.get_future().wait();
    EXPECT_FALSE(oldest->completed());
    wait_for_ranks(group);
    last->waitAndThrow();
    EXPECT_THAT(events.all(), ElementsAre("start 0", "advance 0", "start 1", "advance 1", "finish 0", "start 2",
                                          "finish 1", "start 3", "advance 2", "advance 3", "finish 2", "finish 3"));
  });
}

TEST(Engine, IsSharedByTheUsersOfAGroupAndEndsWithTheLast) {
  run_ranks(1, [](int64_t, const Group& group) {
    auto first = Engine::for_group(group);
    auto second = Engine::for_group(group);
    EXPECT_EQ(first, second);
    const std::weak_ptr<Engine> watched = first;
    first.reset();
    second->submit(std::make_shared<TwoHops>(0, 1))->waitAndThrow();
    second.reset();
    EXPECT_TRUE(watched.expired());
    Engine::for_group(group)->submit(std::make_shared<TwoHops>(0, 1));  // And one may come after it.
  });
}

TEST(Engine, RunsBesideCollectivesOfTheSameGroup) {
  run_ranks(3, [](int64_t rank, const Group& group) {
    const auto engine = Engine::for_group(group);
    std::vector<Future> futures;
    for (int64_t number = 0; number < 8; ++number) {
      futures.push_back(engine->submit(std::make_shared<TwoHops>(number, 200'000)));
      std::vector<at::Tensor> tensors{at::full({1000}, 1, at::kLong)};
      group->allreduce(tensors)->wait();
      EXPECT_EQ(tensors[0][999].item<int64_t>(), 3);
    }
    for (int64_t number = 0; number < 8; ++number) {
      futures[number]->waitAndThrow();
      EXPECT_EQ(futures[number]->value().toTensor().item<int64_t>(), expected_sum(number, 200'000, rank, 3));
    }
  });
}

TEST(Engine, MayLoseItsLastUserInACallback) {
  run_ranks(1, [](int64_t, const Group& group) {
    auto engine = Engine::for_group(group);
    std::promise<void> proceed;
    std::promise<void> dropped;
    const auto future = engine->submit(std::make_shared<TwoHops>(
        0, 1, Observer{.on_start = [&, wait = proceed.get_future().share()] { wait.wait(); }}));
    future->addCallback([&](c10::ivalue::Future&) {
      engine.reset();
      dropped.set_value();
    });
    proceed.set_value();
    dropped.get_future().wait();
    EXPECT_EQ(engine, nullptr);
  });
}

}  // namespace
}  // namespace narrowcast::engine
