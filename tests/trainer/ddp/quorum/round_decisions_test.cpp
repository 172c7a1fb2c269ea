#include "trainer/ddp/quorum/round_decisions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include <narrowcast/errors.h>
#include "tests/support/error_message.h"

namespace narrowcast::testing {
namespace {

using ::testing::HasSubstr;

TEST(RoundDecisions, TheFirstOneCountsForAll) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  RoundDecisions first(store, 4, 2);
  RoundDecisions second(store, 4, 2);
  EXPECT_EQ(first.find(0), std::nullopt);
  EXPECT_EQ(first.find(0), std::nullopt) << "a search decides nothing";
  EXPECT_EQ(first.decide(0, {0, 1}), (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(second.decide(0, {0, 1, 3}), (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(second.find(0), (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(second.find(1), std::nullopt);
}

TEST(RoundDecisions, AreEqualInARace) {
  constexpr int64_t kRounds = 200;
  constexpr int64_t kGroups = 5;
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::vector<std::vector<int64_t>>> decided(kGroups);
  std::vector<std::thread> threads;
  for (int64_t group = 0; group < kGroups; ++group) {
    threads.emplace_back([&, group] {
      RoundDecisions decisions(store, kGroups, 1);
      for (int64_t round = 0; round < kRounds; ++round) decided[group].push_back(decisions.decide(round, {group}));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int64_t group = 1; group < kGroups; ++group) EXPECT_EQ(decided[group], decided[0]);
}

TEST(RoundDecisions, ForgetsTheRoundsBefore) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  RoundDecisions decisions(store, 2, 1);
  for (int64_t round = 0; round < 4; ++round) decisions.decide(round, {1});
  const int64_t before = store->getNumKeys();
  decisions.forget_before(3);
  EXPECT_EQ(store->getNumKeys(), before - 2) << "at most two at once";
  decisions.forget_before(3);
  EXPECT_EQ(store->getNumKeys(), before - 3);
  EXPECT_EQ(decisions.find(3), std::vector<int64_t>{1});
  EXPECT_EQ(decisions.find(2), std::nullopt);
  for (int64_t round = 4; round < 12; ++round) decisions.decide(round, {1});
  decisions.forget_all_before(12);
  EXPECT_EQ(store->getNumKeys(), before - 4);
}

TEST(RoundDecisions, RefusesWhatIsNotAList) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  RoundDecisions decisions(store, 2, 2);
  RoundDecisions(store, 2, 1).decide(0, {1});
  EXPECT_THAT(error_message<CorruptInputError>([&] {
                decisions.decide(0, {0, 1});
              }),
              HasSubstr("has 1 groups, but outer_quorum is 2"));
  EXPECT_THAT(error_message<CorruptInputError>([&] { decisions.find(0); }), HasSubstr("outer_quorum is 2"));
}

}  // namespace
}  // namespace narrowcast::testing
