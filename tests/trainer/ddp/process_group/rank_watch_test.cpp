#include "trainer/ddp/process_group/rank_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>

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
    EXPECT_THAT(
        rank0.describe_others(),
        ::testing::MatchesRegex("rank 1 is not in a collective; rank 2 has been in backward pass for [0-9]+ s"));
  }
  EXPECT_EQ(rank0.describe_others(), "rank 1 is not in a collective; rank 2 is not in a collective") << "asked again";
}

TEST(RankWatchTest, SaysWhoDoesNotAnswer) {
  const StorePtr store = c10::make_intrusive<c10d::HashStore>();
  const RankWatch rank0(store, rank_of_three(0, 3s));
  const RankWatch rank1(store, rank_of_three(1));
  EXPECT_EQ(rank0.describe_others(),
            "rank 1 is not in a collective; rank 2 does not answer (stopped, hung or unreachable)");
}

TEST(RankWatchTest, SeveralMayAskAtOnce) {
  const StorePtr store = c10::make_intrusive<c10d::HashStore>();
  const RankWatch rank0(store, rank_of_three(0));
  const RankWatch rank1(store, rank_of_three(1));
  const RankWatch rank2(store, rank_of_three(2));
  auto from1 = std::async(std::launch::async, [&] { return rank1.describe_others(); });
  auto from2 = std::async(std::launch::async, [&] { return rank2.describe_others(); });
  EXPECT_THAT(from1.get(), ::testing::StartsWith("rank 0 is not in a collective; rank 2 "));
  EXPECT_THAT(from2.get(), ::testing::StartsWith("rank 0 is not in a collective; rank 1 "));
}

TEST(RankWatchTest, ADeadThreadAnswersNobody) {
  const StorePtr store = c10::make_intrusive<c10d::HashStore>();
  const RankWatch rank0(store, rank_of_three(0, 100ms));
  { const RankWatch rank1(store, rank_of_three(1)); }
  EXPECT_THAT(rank0.describe_others(), ::testing::StartsWith("rank 1 does not answer"));
}

// Records the lost rank that a watch reported, once: a second report would throw.
struct ToldOnce {
  std::promise<int64_t> lost;
  std::future<int64_t> future = lost.get_future();

  bool is_told() const { return future.wait_for(0ms) == std::future_status::ready; }
};

RankWatch::Options watching(int64_t rank, int64_t watched, ToldOnce& told) {
  RankWatch::Options options = rank_of_three(rank);
  options.watched = watched;
  options.silence = 1s;
  options.on_silence = [&](int64_t lost) { told.lost.set_value(lost); };
  return options;
}

RankWatch::Options watching_for_all(int64_t rank, int64_t watched, ToldOnce& told) {
  RankWatch::Options options = watching(rank, watched, told);
  options.on_all_ranks = true;
  return options;
}

// Waits for `looks` polls of a rank: by default more than a silence of 1 s has, so that a report would have come.
void wait_for_looks(const StorePtr& store, int64_t rank, int64_t looks = 2 * 1s / 5ms) {
  const std::string key = "watch/sign/" + std::to_string(rank);
  const int64_t before = store->add(key, 0);
  while (store->add(key, 0) < before + looks) testing::pause_between_looks();
}

// Store whose connections can be broken: break_all() breaks all connections that were made before it.
class BreakingStore : public c10d::PrefixStore {
 public:
  static constexpr const char* kPrefix = "breaking";

  struct Connections {
    std::atomic<int64_t> made = 0;
    std::atomic<int64_t> broken = 0;
    void break_all() { broken = made.load(); }
  };

  BreakingStore(const StorePtr& store, std::shared_ptr<Connections> connections)
      : PrefixStore(kPrefix, store),
        store_(store),
        connections_(std::move(connections)),
        number_(++connections_->made) {}

  StorePtr clone() override { return c10::make_intrusive<BreakingStore>(store_, connections_); }
  int64_t add(const std::string& key, int64_t value) override {
    TORCH_CHECK_WITH(DistNetworkError, number_ > connections_->broken, "the connection is broken");
    return PrefixStore::add(key, value);
  }

 private:
  const StorePtr store_;
  const std::shared_ptr<Connections> connections_;
  const int64_t number_;
};

TEST(RankWatchTest, GivesSignsOnANewConnectionWhereOneBroke) {
  const StorePtr store = c10::make_intrusive<c10d::HashStore>();
  const StorePtr signs = c10::make_intrusive<c10d::PrefixStore>(BreakingStore::kPrefix, store);
  const auto connections = std::make_shared<BreakingStore::Connections>();
  ToldOnce told;
  const RankWatch rank1(c10::make_intrusive<BreakingStore>(store, connections), watching(1, 2, told));
  for (int64_t time = 0; time < 3; ++time) {
    wait_for_looks(signs, 1, 3);
    connections->break_all();
  }
  wait_for_looks(signs, 1, 3);
  EXPECT_GE(connections->made, 4);
  EXPECT_FALSE(told.is_told());
}

// Rank 1 has given a sign, as if it had been stopped afterwards; rank 2 has given none yet.
TEST(RankWatchTest, TellsOfSilence) {
  const StorePtr store = c10::make_intrusive<c10d::HashStore>();
  store->add("watch/sign/1", 1);
  ToldOnce of_1;
  ToldOnce of_2;
  const RankWatch rank0(store, watching(0, 1, of_1));
  const RankWatch other(store, watching(0, 2, of_2));
  ASSERT_EQ(of_1.future.wait_for(testing::kPatience), std::future_status::ready);
  EXPECT_EQ(of_1.future.get(), 1);
  wait_for_looks(store, 0);
  EXPECT_FALSE(of_2.is_told());
}

// The rank gives signs during any work: here it is in a long step.
TEST(RankWatchTest, ARankThatOnlyComputesLongIsNotSilent) {
  const StorePtr store = c10::make_intrusive<c10d::HashStore>();
  ToldOnce of_0;
  ToldOnce of_1;
  const RankWatch rank0(store, watching_for_all(0, 1, of_1));
  const RankWatch rank1(store, watching_for_all(1, 0, of_0));
  const StepScope step(1, "forward pass");
  wait_for_looks(store, 0);
  wait_for_looks(store, 1);
  EXPECT_FALSE(of_0.is_told());
  EXPECT_FALSE(of_1.is_told());
}

TEST(RankWatchTest, ARankThatHasLeftIsNotSilent) {
  const StorePtr store = c10::make_intrusive<c10d::HashStore>();
  ToldOnce of_0;
  ToldOnce of_1;
  const RankWatch rank0(store, watching_for_all(0, 1, of_1));
  {
    const RankWatch rank1(store, watching_for_all(1, 0, of_0));
    while (store->add("watch/sign/1", 0) == 0) testing::pause_between_looks();
  }
  wait_for_looks(store, 0);
  EXPECT_FALSE(of_1.is_told());
  EXPECT_EQ(rank0.silent_rank(), std::nullopt);
}

TEST(RankWatchTest, AllOthersLearnWhoIsSilent) {
  const StorePtr store = c10::make_intrusive<c10d::HashStore>();
  store->add("watch/sign/1", 1);
  ToldOnce of_rank_0;
  ToldOnce of_rank_2;
  // Rank 0 serves the store: after its end the other ranks could not learn of the loss.
  RankWatch::Options serving = watching_for_all(0, 1, of_rank_0);
  serving.rank_0_serves = true;
  serving.look_every = 200ms;  // It waits for the others as long as three polls take.
  serving.on_silence = [&, tell = serving.on_silence](int64_t lost) {
    EXPECT_EQ(store->add("watch/informed", 0), 2);
    tell(lost);
  };
  const RankWatch rank0(store, serving);
  const RankWatch rank2(store, watching_for_all(2, 0, of_rank_2));
  for (ToldOnce* const told : {&of_rank_0, &of_rank_2}) {
    ASSERT_EQ(told->future.wait_for(testing::kPatience), std::future_status::ready);
    EXPECT_EQ(told->future.get(), 1);
  }
  EXPECT_EQ(rank0.silent_rank(), 1);
  EXPECT_EQ(rank2.silent_rank(), 1);
  ToldOnce of_rank_1;
  const RankWatch rank1(store, watching_for_all(1, 2, of_rank_1));  // It continues to run, and reports no other loss.
  wait_for_looks(store, 1);
  EXPECT_FALSE(of_rank_1.is_told());
}

// Values that strangers or a mistake may leave in the store.
TEST(RankWatchTest, WhatIsNoRankIsNotSilent) {
  for (const char* const text : {"", "x", "-1", "3", "99999999999999999999", "1 2"}) {
    const StorePtr store = c10::make_intrusive<c10d::HashStore>();
    store->set("watch/silent", text);
    ToldOnce told;
    const RankWatch rank0(store, watching_for_all(0, 1, told));
    wait_for_looks(store, 0, 3);
    EXPECT_FALSE(told.is_told()) << text;
    EXPECT_EQ(rank0.silent_rank(), std::nullopt) << text;
  }
}

// Like the store of a stopped process: connections stay, and no answer comes.
class StuckStore final : public c10d::HashStore {
 public:
  int64_t add(const std::string& key, int64_t value) override {
    while (is_stuck) is_stuck.wait(true);
    return HashStore::add(key, value);
  }
  std::atomic<bool> is_stuck = false;
};

TEST(RankWatchTest, AStoreThatDoesNotAnswerIsTheSilenceOfWhoServesIt) {
  for (const bool rank_0_serves : {true, false}) {
    const auto store = c10::make_intrusive<StuckStore>();
    ToldOnce told;
    {
      RankWatch::Options options = watching_for_all(1, 2, told);
      options.rank_0_serves = rank_0_serves;
      const RankWatch rank1(store, options);
      while (store->HashStore::add("watch/sign/1", 0) == 0) testing::pause_between_looks();
      store->is_stuck = true;
      if (rank_0_serves) {
        ASSERT_EQ(told.future.wait_for(testing::kPatience), std::future_status::ready);
        EXPECT_EQ(told.future.get(), 0);
        EXPECT_EQ(rank1.silent_rank(), 0);
      } else {
        EXPECT_EQ(told.future.wait_for(1500ms), std::future_status::timeout) << "longer than the silence";
      }
      store->is_stuck = false;
      store->is_stuck.notify_all();
      wait_for_looks(store, 1);
    }
    EXPECT_EQ(told.future.valid() && told.is_told(), false);
  }
}

}  // namespace
}  // namespace narrowcast
