#include "ops/engine/engine.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <future>
#include <mutex>
#include <stdexcept>

#include "tests/support/ranks.h"

namespace narrowcast::engine {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::fork_ranks;
using ::testing::HasSubstr;
using testing::kRankPassed;
using testing::run_ranks;
using testing::wait_for_ranks;
using Future = c10::intrusive_ptr<c10::ivalue::Future>;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;
using std::chrono::milliseconds;

struct Observer {
  std::function<void()> on_start = [] {};
  std::function<void()> on_advance = [] {};
  std::function<void()> on_finish = [] {};
};

// Hop 1: every rank sends `count` bytes of value rank + 10 * number to all others.
// Hop 2: it sends what it received from rank - 1 on to rank + 1.
// The value is the sum of one byte of each message received.
class TwoHops final : public Job {
 public:
  TwoHops(int64_t number, int64_t count, Observer observer = {})
      : number_(number), count_(count), observer_(std::move(observer)) {}

  std::string name() const override { return "exchange " + std::to_string(number_); }

  void start(Transport& transport) override {
    observer_.on_start();
    const int64_t rank = transport.rank();
    const int64_t world_size = transport.world_size();
    for (int64_t i = 1; i < world_size; ++i) {
      const int64_t peer = (rank + world_size - i) % world_size;
      for (int64_t hop = 0; hop < (i == 1 ? 2 : 1); ++hop) {
        received_.push_back(at::empty({count_}, at::kByte));
        receives_.push_back(transport.post_receive({received_.back(), peer, hop}));
      }
    }
    for (int64_t i = 1; i < world_size; ++i) {
      transport.send({at::full({count_}, rank + 10 * number_, at::kByte), (rank + i) % world_size});
    }
  }

  void advance(Transport& transport) override {
    observer_.on_advance();
    if (receives_.empty()) return;
    transport.wait_receive(receives_[0]);
    transport.send({received_[0], (transport.rank() + 1) % transport.world_size(), 1});
  }

  at::Tensor finish(Transport& transport) override {
    observer_.on_finish();
    int64_t sum = 0;
    for (size_t i = 0; i < receives_.size(); ++i) {
      transport.wait_receive(receives_[i]);
      if (count_ > 0) sum += received_[i][count_ - 1].item<int64_t>();
    }
    return at::full({}, sum, at::kLong);
  }

 private:
  int64_t number_;
  int64_t count_;
  Observer observer_;
  std::vector<at::Tensor> received_;
  std::vector<int64_t> receives_;
};

class Throwing final : public Job {
 public:
  std::string name() const override { return "an exchange that throws"; }
  void start(Transport&) override { throw std::logic_error("start failed on purpose"); }
  at::Tensor finish(Transport&) override { return {}; }
};

// The error of `future`, which must come within the test's patience.
std::string error_of(const Future& future) {
  try {
    future->waitAndThrow();
  } catch (const c10::DistBackendError& error) {
    return error.what_without_backtrace();
  }
  return "no DistBackendError";
}

int64_t expected_sum(int64_t number, int64_t count, int64_t rank, int64_t world_size) {
  if (count == 0 || world_size == 1) return 0;
  const int64_t first_hop = world_size * (world_size - 1) / 2 - rank + (world_size - 1) * 10 * number;
  return first_hop + (rank + world_size - 2) % world_size + 10 * number;
}

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

TEST(Engine, AJobThatThrowsFailsItsFutureAndAllLaterOnes) {
  run_ranks(1, [](int64_t, const Group& group) {
    const auto engine = Engine::for_group(group);
    const auto before = engine->submit(std::make_shared<TwoHops>(0, 1));
    const auto failed = engine->submit(std::make_shared<Throwing>());
    const auto later = engine->submit(std::make_shared<TwoHops>(7, 1));
    before->waitAndThrow();
    EXPECT_THROW(failed->waitAndThrow(), std::logic_error);
    EXPECT_THAT(error_of(later), AllOf(HasSubstr("rank 0"), HasSubstr("exchange 7"), HasSubstr("failed on purpose")));
    EXPECT_THAT(error_of(engine->submit(std::make_shared<TwoHops>(8, 1))), HasSubstr("exchange 8"));
  });
}

TEST(Engine, GivesUpWhatIsUnfinishedWhenItsLastUserGoes) {
  const auto begin = std::chrono::steady_clock::now();
  run_ranks(2, [](int64_t rank, const Group& group) {
    if (rank == 1) {  // Never submits anything.
      wait_for_ranks(group);
      return;
    }
    std::promise<void> started;
    auto engine = Engine::for_group(group);
    const auto first =
        engine->submit(std::make_shared<TwoHops>(0, 1000, Observer{.on_advance = [&] { started.set_value(); }}));
    const auto second = engine->submit(std::make_shared<TwoHops>(1, 1000));
    const auto third = engine->submit(std::make_shared<TwoHops>(2, 1000));
    started.get_future().wait();
    engine.reset();
    EXPECT_THAT(error_of(first), AllOf(HasSubstr("exchange 0"), HasSubstr("given up")));
    EXPECT_THAT(error_of(second), HasSubstr("exchange 1"));
    EXPECT_THAT(error_of(third), HasSubstr("exchange 2"));
    wait_for_ranks(group);
  });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(15)) << "half of the group's timeout";
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

TEST(Engine, ASilentPeerFailsTheExchangeAfterTheTimeout) {
  const auto body = [](int64_t rank, const Group& group) {
    if (rank == 1) return;  // Its group lives on, silent, until all ranks have returned.
    const auto engine = Engine::for_group(group);
    EXPECT_THAT(error_of(engine->submit(std::make_shared<TwoHops>(3, 1000))),
                AllOf(HasSubstr("rank 0: exchange 3"), HasSubstr("from rank 1"), HasSubstr("imed out")));
  };
  run_ranks(2, body, {.timeout = milliseconds(500)});
}

TEST(Engine, ChecksWhatAJobAsksFor) {
  class Wrong final : public Job {
   public:
    explicit Wrong(Message message) : message_(std::move(message)) {}
    std::string name() const override { return "a wrong exchange"; }
    void start(Transport& transport) override { transport.send(message_); }
    at::Tensor finish(Transport&) override { return {}; }

   private:
    Message message_;
  };
  for (const Message& message : {Message{at::empty({1}, at::kByte), 0}, Message{at::empty({1}, at::kByte), 2},
                                 Message{at::empty({1}, at::kByte), 1, Transport::kChannels}}) {
    run_ranks(2, [&](int64_t rank, const Group& group) {
      if (rank == 1) return;
      const auto engine = Engine::for_group(group);
      EXPECT_THROW(engine->submit(std::make_shared<Wrong>(message))->waitAndThrow(), c10::ValueError);
    });
  }
  EXPECT_THROW(Engine::for_group(nullptr), c10::ValueError);
  EXPECT_THROW(Engine::for_group(c10::make_intrusive<c10d::ProcessGroup>(0, 1)), c10::ValueError);
}

TEST(EngineFaults, ADeadPeerFailsTheExchangeAndLaterOnes) {
  const auto begin = std::chrono::steady_clock::now();
  const auto codes = fork_ranks(3, [](int64_t rank, const Group& group) {
    const auto engine = Engine::for_group(group);
    engine->submit(std::make_shared<TwoHops>(0, 1000))->waitAndThrow();
    wait_for_ranks(group);
    if (rank == 2) ::_exit(42);
    const auto first = engine->submit(std::make_shared<TwoHops>(1, 1000));
    const auto second = engine->submit(std::make_shared<TwoHops>(2, 1000));
    EXPECT_THAT(error_of(first),
                AllOf(HasSubstr("rank " + std::to_string(rank) + ": exchange 1"), HasSubstr(" rank ")));
    EXPECT_THAT(error_of(second), HasSubstr("exchange 2"));
  });
  EXPECT_THAT(codes, ElementsAre(kRankPassed, kRankPassed, 42));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(15)) << "half of the group's timeout";
}

}  // namespace
}  // namespace narrowcast::engine
