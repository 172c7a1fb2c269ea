#include "trainer/ddp/process_group/rank_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <narrowcast/network_errors.h>
#include "tests/support/patience.h"

namespace narrowcast {
namespace {

using namespace std::chrono_literals;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

RankWatch::Options rank_of_three(int64_t rank, std::chrono::milliseconds patience = testing::kPatience) {
  return {.rank = rank, .world_size = 3, .look_every = 5ms, .patience = patience};
}

TEST(RankWatchTest, SaysWhatTheOthersDo) {
  const StorePtr store = c10::make_intrusive<c10d::HashStore>();
  const RankWatch rank0(store, rank_of_three(0));
  const RankWatch rank1(store, rank_of_three(1));
  const RankWatch rank2(store, rank_of_three(2));
  {
    const StepScope step(2, "backward pass");
    EXPECT_THAT(rank0.describe_others(),
                ::testing::MatchesRegex("rank 1 is in no collective; rank 2 has been in backward pass for [0-9]+ s"));
  }
  EXPECT_EQ(rank0.describe_others(), "rank 1 is in no collective; rank 2 is in no collective") << "asked again";
}

TEST(RankWatchTest, SaysWhoDoesNotAnswer) {
  const StorePtr store = c10::make_intrusive<c10d::HashStore>();
  const RankWatch rank0(store, rank_of_three(0, 3s));
  const RankWatch rank1(store, rank_of_three(1));
  EXPECT_EQ(rank0.describe_others(),
            "rank 1 is in no collective; rank 2 does not answer (stopped, hung or unreachable)");
}

TEST(RankWatchTest, SeveralMayAskAtOnce) {
  const StorePtr store = c10::make_intrusive<c10d::HashStore>();
  const RankWatch rank0(store, rank_of_three(0));
  const RankWatch rank1(store, rank_of_three(1));
  const RankWatch rank2(store, rank_of_three(2));
  auto from1 = std::async(std::launch::async, [&] { return rank1.describe_others(); });
  auto from2 = std::async(std::launch::async, [&] { return rank2.describe_others(); });
  EXPECT_THAT(from1.get(), ::testing::StartsWith("rank 0 is in no collective; rank 2 "));
  EXPECT_THAT(from2.get(), ::testing::StartsWith("rank 0 is in no collective; rank 1 "));
}

TEST(RankWatchTest, ADeadThreadAnswersNobody) {
  const StorePtr store = c10::make_intrusive<c10d::HashStore>();
  const RankWatch rank0(store, rank_of_three(0, 100ms));
  { const RankWatch rank1(store, rank_of_three(1)); }
  EXPECT_THAT(rank0.describe_others(), ::testing::StartsWith("rank 1 does not answer"));
}

// Rank 1 gives signs, stops, and is told of once; rank 2 has given none yet.
TEST(RankWatchTest, TellsOfSilence) {
  const StorePtr store = c10::make_intrusive<c10d::HashStore>();
  std::promise<void> silent;
  RankWatch::Options watching = rank_of_three(0);
  watching.watched = 1;
  watching.silence = 1s;
  watching.on_silence = [&] { silent.set_value(); };  // Twice would throw.
  RankWatch::Options watching_rank_2 = rank_of_three(1);
  watching_rank_2.watched = 2;
  watching_rank_2.silence = 1s;
  watching_rank_2.on_silence = [] { FAIL(); };
  const RankWatch rank0(store, watching);
  std::future<void> told = silent.get_future();
  {
    const RankWatch rank1(store, watching_rank_2);
    while (store->add("watch/sign/1", 0) < 3) {
      std::this_thread::yield();
    }
    EXPECT_EQ(told.wait_for(0ms), std::future_status::timeout);
  }
  EXPECT_EQ(told.wait_for(testing::kPatience), std::future_status::ready);
}

}  // namespace
}  // namespace narrowcast
