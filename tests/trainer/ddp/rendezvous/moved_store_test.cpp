// Another launcher serves the job's store. In files with fork_ranks and ForkedStore each suite is a process of its own.
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <optional>
#include <string>

#include <narrowcast/errors.h>
#include "tests/support/error_message.h"
#include "tests/support/loopback_socket.h"
#include "tests/support/moving_store.h"
#include "tests/support/patience.h"
#include "trainer/ddp/rendezvous/rendezvous.h"

namespace narrowcast::rendezvous {
namespace {

using testing::error_message;
using ::testing::HasSubstr;
using testing::serve_job;
using namespace std::chrono_literals;
using Change = JobStore::Change;

JobStoreOptions within(std::chrono::milliseconds timeout) { return {.timeout = timeout, .interface = ""}; }

// Joins the ranks of nodes 2 and 3 in the present store.
void expect_to_meet(const WorkerEnv& second, const WorkerEnv& third) {
  auto waits = std::async(std::launch::async, [&] { return JobStore(third, within(testing::kPatience)).join(); });
  JobStore store(second, within(testing::kPatience));
  EXPECT_EQ(store.env().rank, 0);
  EXPECT_EQ(store.env().world_size, 2);
  store.join()->set("key", std::string("value"));
  EXPECT_EQ(waits.get()->get_to_str("key"), "value");
}

class MovedStoreTest : public ::testing::Test {
 protected:
  // Returns when the rank of node 1, which is rank 0, waits for the others.
  void wait_for_roll_call() {
    while (!old_->check({testing::job_key("attempt/0/0")})) testing::pause_between_looks();
  }

  network::TcpStorePtr old_ = serve_job("0 1:1,2:1,3:1");
  const testing::StoreFileOfTest file_;
};

TEST_F(MovedStoreTest, IsFoundWhereTheFileTells) {
  const testing::SilentPort dead;
  file_.tell(dead.port());
  const WorkerEnv env = file_.env(2, old_->getPort());
  EXPECT_THAT(error_message<c10::DistBackendError>([&] { JobStore(env, within(300ms)); }),
              HasSubstr("rank 1: reaching the store at 127.0.0.1:" + std::to_string(dead.port()) + " failed"));
  auto found = std::async(std::launch::async, [&] { return JobStore(env, within(testing::kPatience)).env(); });
  const auto moved = serve_job("1 2:1,3:1");
  file_.tell(moved->getPort());
  const WorkerEnv placed = found.get();
  EXPECT_EQ(placed.master_port, moved->getPort());
  EXPECT_EQ(placed.rank, 0);
  EXPECT_EQ(placed.world_size, 2);
}

TEST_F(MovedStoreTest, WithoutTheFileItIsWhereTheLauncherSaid) {
  const JobStore store(file_.env(2, old_->getPort()), within(testing::kPatience));
  EXPECT_EQ(store.env().rank, 1);
  EXPECT_EQ(store.change(), Change::kNone);
  file_.tell(old_->getPort());
  EXPECT_EQ(store.change(), Change::kNone) << "the same address";
}

TEST_F(MovedStoreTest, AFileWithOtherContentIsAnError) {
  const testing::TemporaryFolder folder;
  WorkerEnv env = file_.env(2, old_->getPort());
  env.store_file = folder.write("file", "nowhere\n");
  EXPECT_THAT(error_message<CorruptInputError>([&] { JobStore(env, within(testing::kPatience)); }),
              HasSubstr(env.store_file));
}

TEST_F(MovedStoreTest, IsALoss) {
  file_.tell(old_->getPort());
  JobStore store(file_.env(2, old_->getPort()), within(testing::kPatience));
  EXPECT_FALSE(store.have_changed(0ms));
  const auto moved = serve_job("1 2:1,3:1");
  file_.tell(moved->getPort());
  EXPECT_EQ(store.change(), Change::kLoss);
  EXPECT_TRUE(store.have_changed(0ms));
  EXPECT_THAT(error_message<c10::DistNetworkError>([&] { store.announce_regroups(); }), HasSubstr("has moved"));
  expect_to_meet(file_.env(2, old_->getPort()), file_.env(3, old_->getPort()));
}

TEST_F(MovedStoreTest, EndsARollCall) {
  JobStore first(file_.env(1, old_->getPort()), within(testing::kPatience));
  auto waits = std::async(std::launch::async, [&] { return first.join(); });
  wait_for_roll_call();
  const auto moved = serve_job("1 2:1,3:1");
  file_.tell(moved->getPort());
  EXPECT_THAT(error_message<c10::DistBackendError>([&] { waits.get(); }), HasSubstr("rank 0: joining the job at "));
  EXPECT_TRUE(first.have_changed(0ms));
}

// Its launcher has died, and the others have not noticed it yet.
TEST_F(MovedStoreTest, IsWaitedForIfTheStoreIsDead) {
  JobStore first(file_.env(1, old_->getPort()), within(testing::kPatience));
  auto waits = std::async(std::launch::async, [&] { return first.join(); });
  wait_for_roll_call();
  old_.reset();
  EXPECT_THROW(waits.get(), c10::DistBackendError);
  EXPECT_THROW(first.change(), c10::DistError);
  auto changed = std::async(std::launch::async, [&] { return first.have_changed(0ms); });
  const auto moved = serve_job("1 2:1,3:1");
  file_.tell(moved->getPort());
  EXPECT_TRUE(changed.get());
  EXPECT_EQ(first.change(), Change::kLoss);
  expect_to_meet(file_.env(2, moved->getPort()), file_.env(3, moved->getPort()));
}

TEST_F(MovedStoreTest, CannotMoveWithoutAFile) {
  WorkerEnv env = file_.env(1, old_->getPort());
  env.store_file.clear();
  JobStore store(env, within(testing::kPatience));
  old_.reset();
  EXPECT_THROW(store.have_changed(0ms), c10::DistError);
}

// The machine of its launcher hangs, or is cut off.
class HungStoreTest : public ::testing::TestWithParam<bool> {
 protected:
  const testing::StoreFileOfTest file_;
};

TEST_P(HungStoreTest, IsLeftWhenTheFileTellsAnother) {
  const testing::ForkedStore old("0 1:1,2:1,3:1");
  const testing::ForkedStore moved("1 2:1,3:1");
  const WorkerEnv env = file_.env(2, old.port());
  std::optional<JobStore> before;
  const bool is_found_before = GetParam();
  if (is_found_before) before.emplace(env, within(testing::kPatience));
  old.stop();
  auto waits = std::async(std::launch::async, [&] {
    if (is_found_before) {
      EXPECT_THROW(before->join(), c10::DistBackendError);
      EXPECT_EQ(before->change(), Change::kLoss);
    }
    return JobStore(env, within(testing::kPatience)).env();
  });
  file_.tell(moved.port());
  EXPECT_EQ(waits.get().rank, 0);
}

INSTANTIATE_TEST_SUITE_P(Moments, HungStoreTest, ::testing::Bool());

}  // namespace
}  // namespace narrowcast::rendezvous
