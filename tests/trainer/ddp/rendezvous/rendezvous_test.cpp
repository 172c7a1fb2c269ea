#include "trainer/ddp/rendezvous/rendezvous.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

#include "tests/support/error_message.h"
#include "tests/support/listening_sockets.h"
#include "tests/support/loopback_socket.h"
#include "tests/support/patience.h"
#include "trainer/base/network/tcp_store.h"

namespace narrowcast::rendezvous {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::free_port;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::listening_addresses;
using ::testing::Not;
using namespace std::chrono_literals;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

// A rank of a world of two, on one node or on two.
WorkerEnv env_of(int64_t rank, int64_t port, int64_t local_world_size = 2) {
  WorkerEnv env;
  env.rank = rank;
  env.world_size = 2;
  env.local_rank = local_world_size == 2 ? rank : 0;
  env.local_world_size = local_world_size;
  env.master_addr = "127.0.0.1";
  env.master_port = port;
  return env;
}

JobStoreOptions options(std::chrono::milliseconds timeout = testing::kPatience) {
  return {.timeout = timeout, .interface = ""};
}

std::string error_of(const WorkerEnv& env, const JobStoreOptions& job_store) {
  return testing::error_message<c10::DistBackendError>([&] { JobStore(env, job_store).join(); });
}

// Joins two ranks. Returns the addresses at which this process listens while they are joined.
std::vector<std::string> listens_while_joined(WorkerEnv rank0, WorkerEnv rank1, const JobStoreOptions& job_store) {
  auto client = std::async(std::launch::async, [&] { return JobStore(rank1, job_store).join(); });
  const auto server = JobStore(rank0, job_store).join();
  server->set("key", std::vector<uint8_t>{7});
  EXPECT_THAT(client.get()->get("key"), ElementsAre(7));
  return listening_addresses();
}

TEST(JobStoreTest, AWorldOfOneListensNowhere) {
  JobStore(WorkerEnv{}, options()).join()->set("key", std::vector<uint8_t>{1});
  EXPECT_THAT(listening_addresses(), IsEmpty());
}

TEST(JobStoreTest, OnOneNodeItListensAtLoopbackAloneWhateverTheMasterIsCalled) {
  for (const std::string master : {"127.0.0.1", "localhost", "::1", "no-such-host.invalid"}) {
    const int64_t port = free_port();
    WorkerEnv rank0 = env_of(0, port);
    WorkerEnv rank1 = env_of(1, port);
    rank0.master_addr = rank1.master_addr = master;
    EXPECT_THAT(listens_while_joined(rank0, rank1, options()), ElementsAre("127.0.0.1")) << master;
  }
  EXPECT_THAT(listening_addresses(), IsEmpty());
}

TEST(JobStoreTest, OnSeveralNodesItListensAtTheNamedAddressAlone) {
  const int64_t port = free_port();
  WorkerEnv rank0 = env_of(0, port, 1);
  WorkerEnv rank1 = env_of(1, port, 1);
  rank0.master_addr = rank1.master_addr = "127.0.0.2";
  EXPECT_THAT(listens_while_joined(rank0, rank1, options()), ElementsAre("127.0.0.2"));
}

TEST(JobStoreTest, TheInterfaceServesWhereTheNameIsNoAddressOfThisMachine) {
  const int64_t port = free_port();
  WorkerEnv rank0 = env_of(0, port, 1);
  rank0.master_addr = "203.0.113.9";
  EXPECT_THAT(listens_while_joined(rank0, env_of(1, port, 1), {.timeout = testing::kPatience, .interface = "lo"}),
              ElementsAre("127.0.0.1"));
}

TEST(JobStoreTest, AClientOfTheAgentsStoreListensNowhere) {
  const network::ListeningSocket socket = testing::loopback_socket();
  c10d::TCPStoreOptions agent_options;
  agent_options.port = static_cast<uint16_t>(socket.port());
  agent_options.isServer = true;
  agent_options.masterListenFd = socket.duplicate();
  const auto agent = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", agent_options);
  for (const int64_t restart : {0, 1, 2}) {
    WorkerEnv rank0 = env_of(0, agent->getPort());
    WorkerEnv rank1 = env_of(1, agent->getPort());
    rank0.use_agent_store = rank1.use_agent_store = true;
    rank0.restart_count = restart;  // The other node's agent may count differently.
    EXPECT_THAT(listens_while_joined(rank0, rank1, options()), ElementsAre("127.0.0.1")) << "the agent's own";
  }
}

TEST(JobStoreErrorTest, SaysThatThePortIsInUse) {
  const network::ListeningSocket taken = testing::loopback_socket();
  EXPECT_THAT(error_of(env_of(0, taken.port()), options()),
              AllOf(HasSubstr("rank 0: serving the store at 127.0.0.1:" + std::to_string(taken.port())),
                    HasSubstr("Address already in use"), Not(HasSubstr("\n"))));
}

TEST(JobStoreErrorTest, SaysThatTheMasterIsAnotherMachine) {
  WorkerEnv env = env_of(0, free_port(), 1);
  env.master_addr = "203.0.113.9";
  EXPECT_THAT(error_of(env, options()), HasSubstr("set MASTER_ADDR to an address of rank 0's machine"));
}

TEST(JobStoreErrorTest, SaysThatTheMastersNameIsUnknown) {
  WorkerEnv env = env_of(0, free_port(), 1);
  env.master_addr = "no-such-host.invalid";
  EXPECT_THAT(error_of(env, options(200ms)),
              AllOf(HasSubstr("no-such-host.invalid"), HasSubstr("the name cannot be resolved")));
}

TEST(JobStoreErrorTest, NamesTheRankThatDoesNotCome) {
  const int64_t port = free_port();
  EXPECT_THAT(error_of(env_of(0, port), options(3s)),
              AllOf(HasSubstr("rank 0: joining the job at 127.0.0.1:" + std::to_string(port)),
                    HasSubstr("rank 1 did not join")));
}

// Like a port of another service, or of a process that is stopped.
TEST(JobStoreErrorTest, SaysThatWhatListensThereIsNoStore) {
  const network::ListeningSocket silent = testing::loopback_socket();
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_THAT(error_of(env_of(1, silent.port()), options(200ms)),
              HasSubstr("rank 1: reaching the store at 127.0.0.1:" + std::to_string(silent.port()) +
                        " failed: it does not answer as a store"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, testing::kPatience);
}

TEST(JobStoreErrorTest, SaysThatTheStoreCannotBeReached) {
  const int64_t port = free_port();
  EXPECT_THAT(error_of(env_of(1, port), options(200ms)),
              HasSubstr("rank 1: reaching the store at 127.0.0.1:" + std::to_string(port) + " failed"));
}

// The launcher's store, which two ranks reach that recover in place.
class RecoveringStoreTest : public ::testing::Test {
 protected:
  RecoveringStoreTest()
      : launcher_("127.0.0.1", c10d::TCPStoreOptions{.port = 0, .isServer = true, .waitWorkers = false}) {}
  WorkerEnv env(int64_t rank) const {
    WorkerEnv env = env_of(rank, launcher_.getPort());
    env.use_agent_store = true;
    env.recovers_in_place = true;
    env.run_id = "run";
    return env;
  }
  // A rank on a node that has one rank.
  WorkerEnv env_on(int64_t node, int64_t rank) const {
    WorkerEnv placed = env(rank);
    placed.world_size = 3;
    placed.local_world_size = 1;
    placed.node = node;
    return placed;
  }
  void set(const std::string& name, const std::string& value) {
    launcher_.set("narrowcast/run/" + name, std::vector<uint8_t>(value.begin(), value.end()));
  }
  void set_places(const std::string& places) { set("places", places); }
  void replace_a_process() { launcher_.add("narrowcast/run/starts", 1); }
  c10d::TCPStore launcher_;
};

// Rank 1 has died while rank 0 waits for it. Its successor meets rank 0's next attempt.
TEST_F(RecoveringStoreTest, AWaitForAProcessThatWasReplacedEnds) {
  JobStore first(env(0), options());
  EXPECT_FALSE(first.have_changed(0ms));
  auto waits = std::async(std::launch::async, [&] { return first.join(); });
  replace_a_process();
  EXPECT_THAT(testing::error_message<c10::DistBackendError>([&] { waits.get(); }),
              HasSubstr("the job's ranks have changed meanwhile"));
  EXPECT_TRUE(first.have_changed(0ms));
  first.end_joining();
  auto successor = std::async(std::launch::async, [&] {
    JobStore store(env(1), options());
    const StorePtr joined = store.join();
    store.end_joining();
    return joined;
  });
  JobStore second(env(0), options());
  const StorePtr store = second.join();
  second.end_joining();
  EXPECT_FALSE(second.have_changed(0ms));
  store->set("key", std::vector<uint8_t>{7});
  EXPECT_THAT(successor.get()->get("key"), ElementsAre(7));
}

// The launchers number the ranks anew when a node is lost or joins.
TEST_F(RecoveringStoreTest, ARankTakesItsPresentPlace) {
  set_places("0 1:1,2:1,3:1");
  JobStore before(env_on(3, 2), options());
  EXPECT_EQ(before.env().rank, 2);
  set_places("1 1:1,3:1");
  EXPECT_TRUE(before.have_changed(0ms));
  auto other = std::async(std::launch::async, [&] { return JobStore(env_on(1, 0), options()).join(); });
  JobStore now(env_on(3, 2), options());
  EXPECT_EQ(now.env().rank, 1);
  EXPECT_EQ(now.env().world_size, 2);
  now.join();
  other.get();
  now.report_silent(1);
  EXPECT_TRUE(launcher_.check({"narrowcast/run/silent/3/0"})) << "by its node, whose number stays";
  EXPECT_THAT(testing::error_message<c10::DistBackendError>([&] { JobStore(env_on(2, 1), options()); }),
              HasSubstr("its node is no longer one of the job's nodes"));
}

// Otherwise the first rank would leave a group in which the second, which knows of no further change, waits for it.
TEST_F(RecoveringStoreTest, RanksThatKnowDifferentLossesDoNotMeet) {
  JobStore first(env(0), options(200ms));
  replace_a_process();
  JobStore second(env(1), options(200ms));
  auto waits = std::async(std::launch::async, [&] { second.join(); });
  EXPECT_THAT(testing::error_message<c10::DistBackendError>([&] { first.join(); }), HasSubstr(kRanksHaveChanged));
  EXPECT_THAT(testing::error_message<c10::DistBackendError>([&] { waits.get(); }), HasSubstr("did not join"));
  EXPECT_EQ(second.change(), JobStore::Change::kNone);
}

TEST_F(RecoveringStoreTest, RanksOfDifferentPlacesDoNotMeet) {
  set_places("0 1:1,2:1");
  JobStore first(env_on(1, 0), options());
  auto waits = std::async(std::launch::async, [&] { return first.join(); });
  set_places("1 1:1,2:1,3:1");
  JobStore newcomer(env_on(3, 2), options(200ms));
  EXPECT_THAT(testing::error_message<c10::DistBackendError>([&] { newcomer.join(); }), HasSubstr("did not join"));
  EXPECT_THAT(testing::error_message<c10::DistBackendError>([&] { waits.get(); }), HasSubstr(kRanksHaveChanged));
}

TEST_F(RecoveringStoreTest, TellsLossesFromNewcomers) {
  using Change = JobStore::Change;
  set_places("0 1:1");
  JobStore store(env_on(1, 0), options());
  store.join();
  store.end_joining();
  EXPECT_EQ(store.change(), Change::kNone);
  set_places("0 1:1 2:1");
  EXPECT_EQ(store.change(), Change::kNone) << "it reads its data";
  set_places("1 1:1,2:1");
  const JobStore newcomer(env_on(2, 1), options(200ms));
  EXPECT_EQ(store.change(), Change::kNewcomer) << "it waits for the others";
  EXPECT_EQ(newcomer.change(), Change::kNone);
  replace_a_process();
  EXPECT_EQ(store.change(), Change::kLoss);
}

// They read their data, which may take long. A rank may be lost meanwhile.
TEST_F(RecoveringStoreTest, RanksMeetWithoutNodesThatStart) {
  set_places("3 1:1,2:1 5:2");
  auto waits = std::async(std::launch::async, [&] { return JobStore(env_on(1, 0), options()).join(); });
  JobStore other(env_on(2, 0), options());
  EXPECT_EQ(other.env().world_size, 2);
  other.join();
  waits.get();
  EXPECT_FALSE(launcher_.check({"narrowcast/run/silent/5/0"}));
  set_places("3 1:1,2:1 7:2");
  EXPECT_FALSE(other.have_changed(0ms)) << "they stay together while nodes come and go that start";
}

TEST_F(RecoveringStoreTest, ANodeThatStartsWaitsForAPlace) {
  set_places("3 1:1,2:1 7:4,5:2");
  JobStore starting(env_on(5, 2), options());
  EXPECT_EQ(starting.env().rank, 2) << "it does not wait for others that start";
  EXPECT_EQ(starting.env().world_size, 4);
  auto waits = std::async(std::launch::async, [&] { starting.join(); });
  launcher_.wait({"narrowcast/run/ready/5/0"}, testing::kPatience);
  set_places("4 1:1,2:1,5:2 7:4");
  EXPECT_THAT(testing::error_message<c10::DistBackendError>([&] { waits.get(); }), HasSubstr(kRanksHaveChanged));
  EXPECT_EQ(JobStore(env_on(5, 2), options()).env().rank, 2);
}

// Its ranks never met the others.
TEST_F(RecoveringStoreTest, ANewcomerThatHasFailedChangesNothingForRanksThatWork) {
  set_places("0 1:1");
  JobStore store(env_on(1, 0), options());
  set_places("2 1:1");
  EXPECT_EQ(store.change(), JobStore::Change::kNumber);
  EXPECT_TRUE(store.have_changed(0ms)) << "all ranks that meet must know the same changes";
}

TEST_F(RecoveringStoreTest, NobodyWaitsForARankThatHasEnded) {
  set_places("3 4:2,6:1");
  for (const char* const nobody : {"9/0", "4/2", "6/9223372036854775807", "0/3"}) {
    set("ended_rank", nobody);
    JobStore store(env_on(4, 0), options(700ms));
    EXPECT_THAT(testing::error_message<c10::DistBackendError>([&] { store.join(); }),
                HasSubstr("timed out: ranks 1, 2 did not join"))
        << nobody;
  }
  set("ended_rank", "6/0");
  JobStore next(env_on(4, 0), options(1h));
  EXPECT_THAT(testing::error_message<c10::DistBackendError>([&] { next.join(); }),
              HasSubstr("missing rank 2: it has ended with exit code 0"));
}

TEST_F(RecoveringStoreTest, ReportsASilentRankWithTheStartsThatItKnows) {
  replace_a_process();
  JobStore store(env(0), options());
  replace_a_process();
  store.report_silent(1);
  EXPECT_THAT(launcher_.get("narrowcast/run/silent/0/1"), ElementsAre('1'));
}

// It lives, but hangs, e.g. while it reads its data.
TEST_F(RecoveringStoreTest, ReportsARankThatDoesNotComeInTime) {
  JobStore store(env(0), options(200ms));
  EXPECT_FALSE(store.has_reported());
  EXPECT_THAT(testing::error_message<c10::DistBackendError>([&] { store.join(); }), HasSubstr("rank 1 did not join"));
  EXPECT_TRUE(store.has_reported());
  EXPECT_THAT(launcher_.get("narrowcast/run/silent/0/1"), ElementsAre('0'));
  JobStore other(env(1), options(200ms));
  EXPECT_THROW(other.join(), c10::DistBackendError);
  EXPECT_THAT(launcher_.get("narrowcast/run/silent/0/0"), ElementsAre('0')) << "rank 0 does not go on";
}

// The others work until all ranks of the nodes that join have started: only those that have not may hang.
TEST_F(RecoveringStoreTest, ANewcomerReportsRanksThatHaveNotStarted) {
  set_places("0 1:1");
  JobStore member(env_on(1, 0), options());
  member.join();
  member.announce_regroups();
  set_places("0 1:1 3:1,2:2");
  const auto waits_on = [&] {
    JobStore newcomer(env_on(2, 1), options(200ms));
    EXPECT_THAT(testing::error_message<c10::DistBackendError>([&] { newcomer.join(); }), HasSubstr("timed out: "));
    return newcomer.waits_on();
  };
  EXPECT_TRUE(waits_on());
  EXPECT_TRUE(launcher_.check({"narrowcast/run/silent/2/1"}));
  EXPECT_FALSE(waits_on()) << "its launcher has not replaced it";
  launcher_.deleteKey("narrowcast/run/silent/2/1");
  EXPECT_TRUE(waits_on()) << "for the new process";
  launcher_.deleteKey("narrowcast/run/silent/2/1");
  launcher_.set("narrowcast/run/ready/2/1", std::vector<uint8_t>{'1'});
  EXPECT_TRUE(waits_on()) << "for a place";
  set_places("1 1:1,2:2 3:1");
  EXPECT_TRUE(waits_on()) << "for the member";
  EXPECT_FALSE(launcher_.check({"narrowcast/run/silent/2/1"}));
  EXPECT_FALSE(launcher_.check({"narrowcast/run/silent/1/0"}));
  EXPECT_FALSE(launcher_.check({"narrowcast/run/silent/3/0"})) << "another node that starts";
  EXPECT_TRUE(launcher_.check({"narrowcast/run/met/1"}));
  EXPECT_FALSE(launcher_.check({"narrowcast/run/met/2"}));
  launcher_.set("narrowcast/run/met/2", std::vector<uint8_t>{'1'});
  EXPECT_FALSE(waits_on());
  EXPECT_TRUE(launcher_.check({"narrowcast/run/silent/1/0"})) << "it is no newcomer any more";
}

// These may be in a long step, and not know yet that another launcher serves the store. Who meets them watches them.
TEST_F(RecoveringStoreTest, ARankThatStartsReportsNoRanksOfOtherNodes) {
  set_places("0 1:1 2:2");
  JobStore newcomer(env_on(2, 1), options(200ms));
  EXPECT_THAT(testing::error_message<c10::DistBackendError>([&] { newcomer.join(); }), HasSubstr("timed out: "));
  EXPECT_TRUE(launcher_.check({"narrowcast/run/silent/2/1"}));
  EXPECT_FALSE(launcher_.check({"narrowcast/run/silent/1/0"}));
}

TEST_F(RecoveringStoreTest, KnowsTheHeartbeatsOfRanks) {
  EXPECT_EQ(JobStore(env(0), options()).signs_key_of(1), "signs/0/1");
  set_places("1 1:2,4:1");
  EXPECT_EQ(JobStore(env_on(4, 2), options()).signs_key_of(1), "signs/1/1");
  EXPECT_EQ(JobStore(env_on(4, 2), options()).signs_key_of(2), "signs/4/0");
}

TEST_F(RecoveringStoreTest, KnowsHowLongTheLaunchersWaitForANode) {
  set_places("0 1:1,2:1,3:1");
  EXPECT_EQ(JobStore(env_on(1, 0), options()).node_silence(), kDefaultNodeSilence);
  const std::string longer = "11000";
  launcher_.set("narrowcast/run/node_silence", std::vector<uint8_t>(longer.begin(), longer.end()));
  EXPECT_EQ(JobStore(env_on(1, 0), options(12s)).node_silence(), 11s);
  EXPECT_EQ(JobStore(env_on(1, 0), options(3s)).node_silence(), 3s) << "no longer than all ranks wait for each other";
}

TEST(JobStoreTest, OnlyWhoRecoversInPlaceLooksForReplacedProcesses) {
  EXPECT_FALSE(JobStore(WorkerEnv{}, options()).have_changed(0ms));
}

}  // namespace

}  // namespace narrowcast::rendezvous
