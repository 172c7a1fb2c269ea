#include "trainer/ddp/rendezvous/roll_call.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include "tests/support/error_message.h"
#include "tests/support/patience.h"
#include "trainer/base/network/tcp_store.h"

namespace narrowcast::rendezvous {
namespace {

using ::testing::HasSubstr;
using namespace std::chrono_literals;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

StorePtr new_store() { return c10::make_intrusive<c10d::HashStore>(); }

RollCall rank_of(int64_t rank, int64_t world_size, std::chrono::milliseconds limit = testing::kPatience) {
  return {.rank = rank, .world_size = world_size, .deadline = std::chrono::steady_clock::now() + limit};
}

// Runs one attempt on threads: each rank writes its text below the same key of its rank and reads all texts.
std::vector<std::vector<std::string>> attempt_of(const StorePtr& store, const std::vector<std::string>& texts) {
  std::vector<std::future<std::vector<std::string>>> ranks;
  const auto world_size = static_cast<int64_t>(texts.size());
  for (int64_t rank = 0; rank < world_size; ++rank) {
    ranks.push_back(std::async(std::launch::async, [&, rank] {
      const StorePtr own = call_roll(store, rank_of(rank, world_size));
      own->set("text/" + std::to_string(rank), std::vector<uint8_t>(texts[rank].begin(), texts[rank].end()));
      std::vector<std::string> read;
      for (int64_t other = 0; other < world_size; ++other) {
        const auto bytes = own->get("text/" + std::to_string(other));
        read.emplace_back(bytes.begin(), bytes.end());
      }
      return read;
    }));
  }
  std::vector<std::vector<std::string>> results;
  for (auto& rank : ranks) results.push_back(rank.get());
  return results;
}

class RollCallTest : public ::testing::TestWithParam<int64_t> {};

TEST_P(RollCallTest, EachAttemptSeesItsOwnKeysOnly) {
  const StorePtr store = new_store();
  for (const std::string attempt : {"first", "second", "third"}) {
    const std::vector<std::string> texts(GetParam(), attempt);
    for (const auto& read : attempt_of(store, texts)) {
      EXPECT_EQ(read, texts);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, RollCallTest, ::testing::Values(1, 2, 3, 8));

TEST(RollCallRestartTest, ARankThatComesBeforeRankZeroIgnoresTheLastAttempt) {
  const StorePtr store = new_store();
  attempt_of(store, {"old", "old"});
  const auto attempt = store->get("attempt/");
  const std::string presence = std::string(attempt.begin(), attempt.end()) + "/here/1";
  const auto number_before = store->get(presence);
  auto early = std::async(std::launch::async, [&] { return call_roll(store, rank_of(1, 2)); });
  while (store->get(presence) == number_before) testing::pause_between_looks();  // The rank has found the old attempt.
  const StorePtr leader = call_roll(store, rank_of(0, 2));
  leader->set("key", std::vector<uint8_t>{1});
  EXPECT_TRUE(early.get()->check({"key"}));
}

TEST(RollCallRestartTest, TheWorldMayChange) {
  const StorePtr store = new_store();
  for (const std::vector<std::string>& texts :
       std::vector<std::vector<std::string>>{{"a", "b", "c"}, {"d"}, {"e", "f", "g", "h"}}) {
    for (const auto& read : attempt_of(store, texts)) {
      EXPECT_EQ(read, texts);
    }
  }
}

std::string error_of(const StorePtr& store, const RollCall& call) {
  return testing::error_message<c10::DistStoreError>([&] { call_roll(store, call); });
}

TEST(RollCallErrorTest, NamesTheRanksThatDoNotCome) {
  const StorePtr store = new_store();
  auto present = std::async(std::launch::async, [&] { return error_of(store, rank_of(2, 4, 4s)); });
  EXPECT_THAT(error_of(store, rank_of(0, 4, 3s)), HasSubstr("timed out: ranks 1, 3 did not join"));
  EXPECT_THAT(present.get(), HasSubstr("timed out: ranks 1, 3 did not join"));
}

TEST(RollCallErrorTest, NobodyWaitsForARankThatHasEnded) {
  const StorePtr store = new_store();
  const std::string ended = "missing rank 1: it has ended with exit code 0";
  store->set(kEndedRank, std::string("0/1"));
  EXPECT_THAT(error_of(store, rank_of(2, 3, 1h)), HasSubstr(ended));
  EXPECT_THAT(error_of(store, rank_of(0, 3, 1h)), HasSubstr(ended));
  EXPECT_THAT(error_of(store, rank_of(2, 3, 1h)), HasSubstr(ended));  // after rank 0 has begun
}

TEST(RollCallErrorTest, NobodyCaresForARankOfAnotherWorld) {
  const StorePtr store = new_store();
  store->set(kEndedRank, std::string("0/3"));
  EXPECT_THAT(error_of(store, rank_of(1, 3, 700ms)), HasSubstr("timed out: rank 0 did not join"));
  EXPECT_THAT(error_of(store, rank_of(0, 3, 700ms)), HasSubstr("timed out: ranks 1, 2 did not join"));
}

// Nodes that come and go give ranks other numbers.
TEST(RollCallErrorTest, NamesARankThatHasEndedByItsPresentNumber) {
  const StorePtr store = new_store();
  RollCall call = rank_of(1, 3, 700ms);
  call.number = [](const RankOfNode& rank) { return rank.node == 7 ? std::optional<int64_t>(2) : std::nullopt; };
  store->set(kEndedRank, std::string("5/0"));
  EXPECT_THAT(error_of(store, call), HasSubstr("timed out: rank 0 did not join"));
  store->set(kEndedRank, std::string("7/0"));
  EXPECT_THAT(error_of(store, call), HasSubstr("missing rank 2: it has ended with exit code 0"));
}

TEST(RollCallErrorTest, AJobThatIsCompleteGoesOn) {
  const StorePtr store = new_store();
  store->set(kEndedRank, std::string("0/1"));
  EXPECT_EQ(attempt_of(store, {"a", "b"}).size(), 2U);
}

// A stranger, or another process with the same rank, has written it. The error comes long before the time-out.
TEST(RollCallErrorTest, SaysWhoseEntryWasOverwritten) {
  for (const int64_t rank : {0, 1}) {
    const StorePtr store = new_store();
    if (rank != 0) store->set("attempt/", std::string("name"));
    const std::string entry = rank == 0 ? "attempt/" : "name/here/1";
    auto error = std::async(std::launch::async, [&] { return error_of(store, rank_of(rank, 3)); });
    while (!store->check({entry})) testing::pause_between_looks();
    store->set(entry, std::string("another"));
    EXPECT_THAT(error.get(), HasSubstr("another process has overwritten the entry of rank " + std::to_string(rank)));
  }
}

TEST(RollCallErrorTest, RankZeroMayBeTheOneThatIsMissing) {
  EXPECT_THAT(error_of(new_store(), rank_of(1, 2, 100ms)), HasSubstr("rank 0 did not join"));
  const StorePtr used = new_store();
  attempt_of(used, {"old", "old"});
  EXPECT_THAT(error_of(used, rank_of(1, 2, 100ms)), HasSubstr("rank 0 did not join"));
}

}  // namespace
}  // namespace narrowcast::rendezvous
