#include "ops/comm/engine/engine.h"

#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <mutex>
#include <string>
#include <vector>

#include "tests/ops/comm/engine/two_hops.h"
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
    const auto last = engine->submit(std::make_shared<TwoHops>(0, count));  // All earlier callbacks have run.
    last->waitAndThrow();
    const std::lock_guard<std::mutex> lock(mutex);
    EXPECT_THAT(completed, ElementsAre(0, 1, 2, 3, 4, 5));
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, EngineExchange,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4, 5, 8), ::testing::Values(0, 1, 100'003)));

// Events on an engine's thread. The thread writes them; the test reads them when it is idle.
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
    if (rank == 1) {  // Takes part after rank 0 has started exchange 1: exchange 0 cannot have advanced.
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

// Each advance forwards the message of the previous rank. After W - 1 hops, each rank has received a message of every
// other rank.
class AroundTheRing final : public Job {
 public:
  explicit AroundTheRing(
      int64_t number, std::function<void()> on_advance = [] {}, bool is_ready = false)
      : number_(number), on_advance_(std::move(on_advance)), is_ready_(is_ready) {}

  std::string name() const override { return "ring " + std::to_string(number_); }
  int64_t advances() const override { return static_cast<int64_t>(received_.size()) - 1; }
  bool is_ready() override { return is_ready_; }

  void start(Transport& transport) override {
    received_.clear();
    receives_.clear();
    const int64_t hops = transport.world_size() - 1;
    for (int64_t hop = 0; hop < hops; ++hop) {
      received_.push_back(at::full({1000}, 0, at::kByte));
      receives_.push_back(transport.post_receive({received_.back(), transport.peer_before(1), hop}));
    }
    transport.send({at::full({1000}, transport.rank() + number_, at::kByte), transport.peer_after(1), 0});
    next_ = 0;
  }
  void advance(Transport& transport) override {
    on_advance_();
    transport.wait_receive(receives_[next_]);
    transport.send({received_[next_], transport.peer_after(1), next_ + 1});
    ++next_;
  }
  at::Tensor finish(Transport& transport) override {
    transport.wait_receive(receives_[next_]);
    at::Tensor sum = at::full({}, 0, at::kLong);
    for (const at::Tensor& bytes : received_) sum += bytes[999];
    return sum;
  }

 private:
  const int64_t number_;
  const std::function<void()> on_advance_;
  const bool is_ready_;
  std::vector<at::Tensor> received_;
  std::vector<int64_t> receives_;
  int64_t next_ = 0;
};

TEST(Engine, RunsExchangesOfAnyNumberOfHops) {
  run_ranks(5, [](int64_t rank, const Group& group) {
    const auto engine = Engine::for_group(group);
    std::vector<Future> futures;
    for (int64_t number = 0; number < 4; ++number) {
      futures.push_back(engine->submit(std::make_shared<AroundTheRing>(number)));
      futures.push_back(engine->submit(std::make_shared<TwoHops>(number, 10)));
      if (rank == number) futures.back()->waitAndThrow();  // Ranks differ in how far they run ahead.
    }
    for (int64_t number = 0; number < 4; ++number) {
      futures[2 * number]->waitAndThrow();
      EXPECT_EQ(futures[2 * number]->value().toTensor().item<int64_t>(), 0 + 1 + 2 + 3 + 4 - rank + 4 * number);
      futures[2 * number + 1]->waitAndThrow();
    }
  });
}

// Each job has three hops, and therefore two advances. The second job makes one advance between those of the first if
// it is ready, and never two.
TEST(Engine, ALaterExchangeOfManyHopsGoesAheadByOneAdvanceOnly) {
  for (const bool is_ready : {false, true}) {
    run_ranks(4, [&](int64_t rank, const Group& group) {
      const auto engine = Engine::for_group(group);
      std::vector<std::string> events;
      std::promise<void> both_submitted;
      const auto wait = both_submitted.get_future().share();
      const auto record = [&](const char* what) { return [&events, what] { events.emplace_back(what); }; };
      const auto hold = engine->submit(std::make_shared<TwoHops>(0, 1, Observer{.on_finish = [wait] { wait.wait(); }}));
      engine->submit(std::make_shared<AroundTheRing>(1, record("first")));
      const auto last = engine->submit(std::make_shared<AroundTheRing>(2, record("second"), is_ready));
      both_submitted.set_value();
      last->waitAndThrow();
      // Two advances of each job. The second job's last one comes after all of the first job.
      EXPECT_EQ(events.size(), 4U);
      EXPECT_EQ(events.back(), "second") << rank;
      EXPECT_EQ(events[is_ready ? 1 : 2], "second");
      EXPECT_EQ(events[is_ready ? 2 : 1], "first");
    });
  }
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
    Engine::for_group(group)->submit(std::make_shared<TwoHops>(0, 1));  // Another engine may follow.
  });
}

// Messages carry the exchange numbers of the backend. Numbers continue after a group is gone, whether or not another
// rank still has an engine.
TEST(Engine, CountsTheExchangesOfAllGroupsWithItsBackend) {
  run_ranks(2, [](int64_t rank, const Group& group) {
    Group other = c10::make_intrusive<c10d::ProcessGroup>(group->getRank(), group->getSize());
    other->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::GLOO,
                      group->getBackend(c10::DeviceType::CPU));
    auto first = Engine::for_group(other);
    EXPECT_EQ(first, Engine::for_group(group));
    first->submit(std::make_shared<TwoHops>(0, 100))->waitAndThrow();
    other.reset();
    if (rank == 0) first.reset();
    const auto second = Engine::for_group(group);
    const auto future = second->submit(std::make_shared<TwoHops>(1, 100));
    future->waitAndThrow();
    EXPECT_EQ(future->value().toTensor().item<int64_t>(), expected_sum(1, 100, rank, 2));
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
