#include "trainer/ddp/process_group/group_watch.h"

#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>
#include <vector>

#include "ops/comm/engine/engine.h"
#include "tests/ops/comm/engine/two_hops.h"
#include "tests/support/error_message.h"
#include "tests/support/ranks.h"

namespace narrowcast {
namespace {

using namespace std::chrono_literals;
using engine::Engine;
using engine::TwoHops;
using testing::error_message;
using testing::run_ranks;
using testing::wait_for_ranks;

constexpr const char* kSilenceOfRank1 = "rank 0: rank 1 is lost: it has sent no heartbeat for 1 s";

// Rank 1 runs, but it has no watch: as if its process were stopped. It has given a sign before. Rank 0 calls `body`.
template <class Body>
void silence_rank_1(const Body& body) {
  std::promise<void> done;
  run_ranks(2, [&](int64_t rank, const ProcessGroupPtr& group) {
    const auto store = group->getStore();
    if (rank == 1) {
      store->add("watch/sign/1", 1);
      wait_for_ranks(group);
      done.get_future().wait();
      return;
    }
    wait_for_ranks(group);
    std::promise<std::string> told;
    const GroupWatch watch(
        group, store,
        {.silence = 1s, .on_loss = [&](const std::string& why) { told.set_value(why); }, .look_every = 5ms});
    body(group, watch);
    EXPECT_EQ(told.get_future().get(), kSilenceOfRank1);
    done.set_value();
  });
}

TEST(GroupWatchTest, ALossFailsExchangesInProgressAndLaterOnes) {
  silence_rank_1([](const ProcessGroupPtr& group, const GroupWatch& /*watch*/) {
    const auto engine = Engine::for_group(group);
    const auto first = engine->submit(std::make_shared<TwoHops>(0, 1000));
    EXPECT_EQ(error_message<c10::DistBackendError>([&] { first->waitAndThrow(); }), kSilenceOfRank1);
    const auto later = engine->submit(std::make_shared<TwoHops>(1, 1000));
    EXPECT_THAT(error_message<c10::DistBackendError>([&] { later->waitAndThrow(); }),
                ::testing::EndsWith(kSilenceOfRank1));
  });
}

TEST(GroupWatchTest, ALossEndsCollectivesOfGloo) {
  silence_rank_1([](const ProcessGroupPtr& group, const GroupWatch& /*watch*/) {
    std::vector<at::Tensor> tensors = {at::zeros({1000})};
    EXPECT_ANY_THROW(group->allreduce(tensors)->wait());
  });
}

TEST(GroupWatchTest, ErrorsOfTheNetworkAreExplainedByTheLoss) {
  silence_rank_1([](const ProcessGroupPtr& group, const GroupWatch& watch) {
    const auto exchange = Engine::for_group(group)->submit(std::make_shared<TwoHops>(0, 1000));
    EXPECT_THROW(exchange->waitAndThrow(), c10::DistBackendError);
    const c10::SourceLocation here{__func__, __FILE__, __LINE__};
    EXPECT_EQ(error_message<c10::DistBackendError>(
                  [&] { watch.throw_explained(c10::DistBackendError(here, "rank 0: Connection closed by peer")); }),
              kSilenceOfRank1);
    EXPECT_NO_THROW(watch.throw_explained(c10::ValueError(here, "levels")));
  });
}

TEST(GroupWatchTest, ErrorsWithoutALossStayWhatTheyAre) {
  run_ranks(2, [](int64_t /*rank*/, const ProcessGroupPtr& group) {
    const auto watch = GroupWatch::of_group(group, {.look_every = 5ms});
    const c10::DistBackendError error({__func__, __FILE__, __LINE__}, "rank 0: Connection closed by peer");
    EXPECT_NO_THROW(watch->throw_explained(error));
    wait_for_ranks(group);
  });
}

// Ranks drop their references at different times, and still agree on whether they share.
TEST(GroupWatchTest, UsersOfAGroupShareItsWatch) {
  run_ranks(2, [](int64_t rank, const ProcessGroupPtr& group) {
    auto first = GroupWatch::of_group(group, {});
    EXPECT_EQ(GroupWatch::of_group(group, {}), first);
    EXPECT_NE(GroupWatch::of_group(group, {.silence = 20s}), first);
    auto again = GroupWatch::of_group(group, {});
    if (rank == 0) {
      again.reset();
    }
    const auto next = GroupWatch::of_group(group, {});
    EXPECT_NE(next, nullptr);
    EXPECT_NE(next, again);
    wait_for_ranks(group);
  });
}

TEST(GroupWatchTest, ThereIsNoneWithoutSilenceOrWithoutOtherRanks) {
  run_ranks(1, [](int64_t, const ProcessGroupPtr& group) { EXPECT_EQ(GroupWatch::of_group(group, {}), nullptr); });
  run_ranks(2, [](int64_t, const ProcessGroupPtr& group) {
    EXPECT_EQ(GroupWatch::of_group(group, {.silence = 0s}), nullptr);
  });
  const auto body = [](int64_t, const ProcessGroupPtr& group) { EXPECT_EQ(GroupWatch::of_group(group, {}), nullptr); };
  run_ranks(2, body, {.timeout = 2s});
}

TEST(GroupWatchTest, RanksMustAgreeOnSilence) {
  run_ranks(2, [](int64_t rank, const ProcessGroupPtr& group) {
    EXPECT_EQ(error_message<c10::ValueError>([&] { GroupWatch::of_group(group, {.silence = rank == 0 ? 30s : 0s}); }),
              "watching other ranks: silence_seconds differs between ranks: rank 0 has 30, rank 1 has 0");
  });
}

TEST(GroupWatchTest, WaitsOfGlooCanBeEnded) {
  run_ranks(1, [](int64_t, const ProcessGroupPtr& group) {
    EXPECT_TRUE(GroupWatch::is_possible(group, c10::DeviceType::CPU));
    EXPECT_FALSE(GroupWatch::is_possible(group, c10::DeviceType::CUDA));
  });
}

}  // namespace
}  // namespace narrowcast
