// Failing jobs on an engine's thread, and the jobs behind them.
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <future>
#include <stdexcept>

#include "ops/comm/engine/engine.h"
#include "tests/ops/comm/engine/two_hops.h"
#include "tests/support/error_message.h"
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

class Throwing final : public Job {
 public:
  std::string name() const override { return "an exchange that throws"; }
  void start(Transport&) override { throw std::logic_error("start failed on purpose"); }
  at::Tensor finish(Transport&) override { return {}; }
};

// Returns the error of `future`, which must come within kPatience.
std::string error_of(const Future& future) {
  return testing::error_message<c10::DistBackendError>([&] { future->waitAndThrow(); });
}

TEST(EngineFaults, AJobThatThrowsFailsItsFutureAndAllLaterOnes) {
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

TEST(EngineFaults, GivesUpWhatIsUnfinishedWhenItsLastUserGoes) {
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
    EXPECT_THAT(error_of(first), AllOf(HasSubstr("exchange 0"), HasSubstr("cancelled")));
    EXPECT_THAT(error_of(second), HasSubstr("exchange 1"));
    EXPECT_THAT(error_of(third), HasSubstr("exchange 2"));
    wait_for_ranks(group);
  });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, testing::kPatience / 2) << "half of the group's timeout";
}

TEST(EngineFaults, BreakingOffFailsWhatIsUnfinishedAndWhatComesLater) {
  run_ranks(2, [](int64_t rank, const Group& group) {
    if (rank == 1) return wait_for_ranks(group);  // Never submits anything.
    const auto engine = Engine::for_group(group);
    std::promise<void> started;
    const auto first =
        engine->submit(std::make_shared<TwoHops>(0, 1000, Observer{.on_advance = [&] { started.set_value(); }}));
    started.get_future().wait();
    engine->break_off("rank 1 is lost");
    engine->break_off("another reason");
    EXPECT_EQ(error_of(first), "rank 1 is lost");
    EXPECT_THAT(error_of(engine->submit(std::make_shared<TwoHops>(1, 1000))), HasSubstr("rank 1 is lost"));
    wait_for_ranks(group);
  });
}

TEST(EngineFaults, BreakingOffAnIdleEngineFailsItsNextExchange) {
  run_ranks(2, [](int64_t rank, const Group& group) {
    const auto engine = Engine::for_group(group);
    engine->submit(std::make_shared<TwoHops>(0, 1000))->waitAndThrow();
    if (rank == 0) {
      engine->break_off("rank 1 is lost");
      EXPECT_EQ(error_of(engine->submit(std::make_shared<TwoHops>(1, 1000))), "rank 1 is lost");
    }
    wait_for_ranks(group);
  });
}

TEST(EngineFaults, ASilentPeerFailsTheExchangeAfterTheTimeout) {
  const auto body = [](int64_t rank, const Group& group) {
    if (rank == 1) return;  // Its group stays alive and silent until all ranks have returned.
    const auto engine = Engine::for_group(group);
    EXPECT_THAT(error_of(engine->submit(std::make_shared<TwoHops>(3, 1000))),
                AllOf(HasSubstr("rank 0: exchange 3"), HasSubstr("from rank 1"), HasSubstr("imed out")));
  };
  run_ranks(2, body, {.timeout = milliseconds(500)});
}

TEST(EngineFaults, ChecksWhatAJobAsksFor) {
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
  EXPECT_LT(std::chrono::steady_clock::now() - begin, testing::kPatience / 2) << "half of the group's timeout";
}

}  // namespace
}  // namespace narrowcast::engine
