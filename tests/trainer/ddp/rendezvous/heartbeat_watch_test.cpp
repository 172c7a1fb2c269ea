#include "trainer/ddp/rendezvous/heartbeat_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <set>
#include <string>

#include "tests/support/moving_store.h"
#include "tests/support/patience.h"
#include "trainer/ddp/rendezvous/heartbeats.h"

namespace narrowcast::rendezvous {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using namespace std::chrono_literals;

// The heartbeats of ranks as rank 0 of 4 sees them.
class SilenceOfOthersTest : public ::testing::Test {
 protected:
  // All ranks except `still` give a sign, then rank 0 looks.
  std::vector<int64_t> look(const std::set<int64_t>& still) {
    for (auto& [rank, count] : signs_) count += still.contains(rank) ? 0 : 1;
    asked_.clear();
    return others_.look(
        [&](int64_t rank) {
          asked_.push_back(rank);
          return signs_.at(rank);
        },
        [&](int64_t rank) { return !blind_.contains(rank); });
  }
  std::vector<int64_t> look_often(int64_t looks, const std::set<int64_t>& still) {
    std::vector<int64_t> silent;
    for (int64_t number = 0; number < looks; ++number) silent = look(still);
    return silent;
  }

  std::map<int64_t, int64_t> signs_ = {{1, 7}, {2, 7}, {3, 7}};
  std::set<int64_t> blind_;  // these do not look at others yet
  std::vector<int64_t> asked_;
  SilenceOfOthers others_{{.rank = 0, .world_size = 4, .look_every = 1s, .silence = 5s}};
};

TEST_F(SilenceOfOthersTest, NamesARankThatStandsStillForTheHeartbeatTimeout) {
  EXPECT_THAT(look({}), IsEmpty());
  EXPECT_THAT(look_often(4, {1}), IsEmpty());
  EXPECT_THAT(look({1}), ElementsAre(1));
  EXPECT_THAT(look({1}), ElementsAre(1)) << "until somebody replaces it";
  EXPECT_THAT(look({}), IsEmpty());
}

// Nobody else looks at rank 2 then.
TEST_F(SilenceOfOthersTest, NamesARankBehindAnotherOne) {
  EXPECT_THAT(look_often(10, {1, 2}), ElementsAre(1, 2));
  EXPECT_THAT(asked_, ElementsAre(1, 2, 3));
}

// It lives, but still reads its data.
TEST_F(SilenceOfOthersTest, NamesARankBehindOneThatDoesNotLookYet) {
  blind_ = {1};
  EXPECT_THAT(look({2}), IsEmpty());
  EXPECT_THAT(look_often(4, {2}), IsEmpty());
  EXPECT_THAT(look({2}), ElementsAre(2));
  EXPECT_THAT(asked_, ElementsAre(1, 2, 3));
  blind_.clear();
  EXPECT_THAT(look({2}), IsEmpty()) << "rank 1 looks at it";
  EXPECT_THAT(asked_, ElementsAre(1));
}

TEST_F(SilenceOfOthersTest, LooksAtFewRanksWhileAllLive) {
  look_often(10, {});
  EXPECT_THAT(asked_, ElementsAre(1));
}

TEST_F(SilenceOfOthersTest, ARankWithoutHeartbeatsHasNotBegun) {
  signs_[1] = 0;
  EXPECT_THAT(look_often(100, {1}), IsEmpty());
  EXPECT_THAT(asked_, ElementsAre(1, 2)) << "those after it may stand still";
  signs_[1] = 1;
  EXPECT_THAT(look_often(5, {1}), IsEmpty()) << "its time begins with its first heartbeat";
  EXPECT_THAT(look({1}), ElementsAre(1));
}

TEST_F(SilenceOfOthersTest, APauseOfTheRankItselfBlamesNobody) {
  SilenceOfOthers impatient{{.rank = 0, .world_size = 2, .look_every = 1h, .silence = 1s}};
  const auto all_look = [](int64_t /*rank*/) { return true; };
  int64_t named = 0;
  for (int64_t number = 0; number < 3; ++number) {
    named += std::ssize(impatient.look([](int64_t) { return 7; }, all_look));
  }
  EXPECT_EQ(named, 0);
  EXPECT_THAT(impatient.look([](int64_t) { return 7; }, all_look), ElementsAre(1));
}

// Three nodes with a rank each, and a launcher's store.
class HeartbeatWatchTest : public ::testing::Test {
 protected:
  std::shared_ptr<const JobStore> job_of_rank_0() const {
    return std::make_shared<const JobStore>(file_.env(1, store_->getPort()),
                                            JobStoreOptions{.timeout = testing::kPatience, .interface = ""});
  }
  std::string sign_of(int64_t node) const { return testing::job_key(signs_key(node, 0)); }
  void wait_for(const std::string& key) { store_->wait({key}, testing::kPatience); }

  const testing::StoreFileOfTest file_;
  network::TcpStorePtr store_ = testing::serve_job("0 1:1,2:1,3:1");
};

TEST_F(HeartbeatWatchTest, ReportsARankThatStandsStillBeforeTheRanksMeet) {
  const Heartbeats heartbeats(file_.env(3, store_->getPort()), 1ms);
  store_->add(sign_of(2), 7);
  wait_for(sign_of(3));
  const HeartbeatWatch watch(job_of_rank_0(), 1s, 20ms);
  wait_for(testing::job_key(silent_key(2, 0)));
  EXPECT_EQ(store_->get_to_str(testing::job_key(silent_key(2, 0))), "0") << "for processes that started before";
  EXPECT_FALSE(store_->check({testing::job_key(silent_key(3, 0))}));
}

// A launcher that has removed the entries of a node that is gone does not look for them again.
TEST_F(HeartbeatWatchTest, WritesNoEntriesOfRanksThatHaveNone) {
  store_->add(sign_of(3), 7);
  const HeartbeatWatch watch(job_of_rank_0(), 30ms, 10ms);
  wait_for(testing::job_key(silent_key(3, 0)));
  EXPECT_FALSE(store_->check({sign_of(2)}));
}

TEST_F(HeartbeatWatchTest, ReportsARankBehindAnother) {
  store_->add(sign_of(2), 7);
  store_->add(sign_of(3), 7);
  const HeartbeatWatch watch(job_of_rank_0(), 30ms, 10ms);
  wait_for(testing::job_key(silent_key(2, 0)));
  wait_for(testing::job_key(silent_key(3, 0)));
}

TEST_F(HeartbeatWatchTest, ReportsARankBehindOneThatDoesNotWatchYet) {
  const Heartbeats heartbeats(file_.env(2, store_->getPort()), 1ms);
  wait_for(sign_of(2));
  store_->add(sign_of(3), 7);
  const HeartbeatWatch watch(job_of_rank_0(), 30ms, 10ms);
  wait_for(testing::job_key(silent_key(3, 0)));
}

}  // namespace
}  // namespace narrowcast::rendezvous
