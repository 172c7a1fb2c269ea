#include "trainer/ddp/process_group/change_watch.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <string>
#include <vector>

#include <narrowcast/consensus.h>
#include "tests/support/error_message.h"
#include "tests/support/moving_store.h"
#include "tests/support/patience.h"
#include "tests/trainer/ddp/process_group/ranks_on_threads.h"

namespace narrowcast {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::options_of_thread;
using testing::serve_job;

// Ranks on threads, whose nodes are numbered from 1.
class ChangeWatchTest : public ::testing::Test {
 protected:
  std::future<std::vector<double>> sum_on(int64_t node, int64_t port) {
    return std::async(std::launch::async, [env = file_.env(node, port)] {
      const ProcessGroupScope scope(env, options_of_thread(env.node));
      return all_reduce_sum(scope.group(), {static_cast<double>(env.node)});
    });
  }

  network::TcpStorePtr old_ = serve_job("0 1:1,2:1,3:1");
  const testing::StoreFileOfTest file_;
};

// Rank 0 waits for the others when the launcher that serves the store dies. It may have noticed that or not.
TEST_F(ChangeWatchTest, RanksThatWaitForOthersMeetInTheStoreThatHasMoved) {
  auto first = sum_on(1, old_->getPort());
  while (!old_->check({testing::job_key("attempt/0/0")})) testing::pause_between_looks();
  old_.reset();
  const auto moved = serve_job("1 1:1,2:1");
  file_.tell(moved->getPort());
  auto second = sum_on(2, moved->getPort());
  EXPECT_THAT(first.get(), ElementsAre(3));
  EXPECT_THAT(second.get(), ElementsAre(3));
}

// Nothing breaks the connections of ranks that wait for each other.
TEST_F(ChangeWatchTest, AStoreThatMovesEndsWaitsForOtherRanks) {
  old_ = serve_job("0 1:1,2:1");
  std::promise<void> idle_has_joined;
  std::promise<void> end;
  auto idle = std::async(std::launch::async, [&] {
    const ProcessGroupScope scope(file_.env(2, old_->getPort()), options_of_thread(2));
    idle_has_joined.set_value();
    end.get_future().wait();
  });
  auto waits = std::async(std::launch::async, [&] {
    const ProcessGroupScope scope(file_.env(1, old_->getPort()), options_of_thread(1));
    idle_has_joined.get_future().wait();
    file_.tell(testing::free_port());
    scope.run([&] { all_reduce_sum(scope.group(), {1}); });
  });
  EXPECT_THROW(waits.get(), c10::DistBackendError);
  end.set_value();
  idle.get();
}

class NewcomerTest : public ChangeWatchTest, public ::testing::WithParamInterface<const char*> {};

// The others take it in after a step, which may last longer than the time-out.
TEST_P(NewcomerTest, WaitsOnWhileTheOthersWork) {
  old_ = serve_job(GetParam());
  for (const std::string& key : {std::string(rendezvous::kRegroups), rendezvous::ready_key(1, 0)}) {
    old_->set(testing::job_key(key), std::vector<uint8_t>{'1'});
  }
  auto newcomer = std::async(std::launch::async, [env = file_.env(2, old_->getPort())] {
    ProcessGroupOptions options = options_of_thread(2);
    options.timeout = std::chrono::milliseconds(200);
    const ProcessGroupScope scope(env, options);
  });
  const std::string ready = testing::job_key(rendezvous::ready_key(2, 0));
  for (int64_t attempt = 1; attempt <= 2; ++attempt) {
    while (!old_->check({ready}) && newcomer.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
      testing::pause_between_looks();
    }
    old_->deleteKey(ready);
  }
  const std::string without_it = "2 1:1";
  old_->set(testing::job_key(rendezvous::kPlaces), std::vector<uint8_t>(without_it.begin(), without_it.end()));
  EXPECT_THAT(testing::error_message<c10::DistBackendError>([&] { newcomer.get(); }),
              HasSubstr("its node is no longer one of the job's nodes"));
}

INSTANTIATE_TEST_SUITE_P(Places, NewcomerTest, ::testing::Values("1 1:1,2:1", "0 1:1 2:1"),
                         [](const auto& info) { return info.index == 0 ? "WithAPlace" : "WithoutAPlace"; });

TEST_F(ChangeWatchTest, ANodeThatStartsMeetsTheOthersWhenItHasAPlace) {
  old_ = serve_job("0 1:1 2:1");
  auto newcomer = sum_on(2, old_->getPort());
  old_->wait({testing::job_key(rendezvous::ready_key(2, 0))}, testing::kPatience);
  const std::string both = "1 1:1,2:1";
  old_->set(testing::job_key(rendezvous::kPlaces), std::vector<uint8_t>(both.begin(), both.end()));
  auto member = sum_on(1, old_->getPort());
  EXPECT_THAT(newcomer.get(), ElementsAre(3));
  EXPECT_THAT(member.get(), ElementsAre(3));
}

// A newcomer may be lost after its ranks were ready, and before they were taken in. The next ones must be taken in.
TEST_F(ChangeWatchTest, ARankAloneMeetsAnewAfterALoss) {
  old_ = serve_job("0 1:1");
  const ProcessGroupScope scope(file_.env(1, old_->getPort()), options_of_thread(1));
  EXPECT_FALSE(has_newcomers(scope));
  old_->add(testing::job_key(rendezvous::kStarts), 1);
  const auto deadline = std::chrono::steady_clock::now() + testing::kPatience;
  while (!has_newcomers(scope) && std::chrono::steady_clock::now() < deadline) testing::pause_between_looks();
  EXPECT_TRUE(has_newcomers(scope));
}

TEST(BetweenChangeLooks, BoundsTheWorkOfTheStore) {
  EXPECT_EQ(between_change_looks(2).count(), 200);
  EXPECT_EQ(between_change_looks(600).count(), 600);
  EXPECT_EQ(between_change_looks(10000).count(), 1000);
}

}  // namespace
}  // namespace narrowcast
