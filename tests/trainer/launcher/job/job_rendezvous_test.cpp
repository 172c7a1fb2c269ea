#include "trainer/launcher/job/job_rendezvous.h"

#include <gtest/gtest.h>

#include <csignal>
#include <thread>

#include "tests/support/error_message.h"
#include "tests/support/loopback_socket.h"
#include "tests/support/patience.h"
#include "trainer/base/network/tcp_store.h"
#include "trainer/launcher/store/store_member.h"

namespace narrowcast::launcher {
namespace {

using std::chrono::milliseconds;

NodeReport failure() {
  FailureRecord record;
  record.ending = {.exit_code = 7};
  return {.end = NodeReport::End::kFailed, .failure = record};
}

// By the flag --rdzv_endpoint, on a machine with an address in a network.
std::string warning_of(const std::string& host, const std::vector<std::string>& addresses_of_host,
                       const std::vector<std::string>& own_addresses = {"192.0.2.7", "2001:db8::7"}) {
  return warning_of_loopback("--rdzv_endpoint", host, addresses_of_host, own_addresses);
}

TEST(WarningOfLoopback, NamesAddressesThatOtherMachinesReach) {
  EXPECT_EQ(warning_of("trainer0", {"127.0.1.1"}),
            "--rdzv_endpoint=trainer0: is 127.0.1.1 on this machine, which other machines cannot reach; if there are "
            "any, give the address 192.0.2.7 or 2001:db8::7 to all launchers");
  EXPECT_NE(warning_of("trainer0", {"::1", "127.0.0.1"}), "");
}

TEST(WarningOfLoopback, IsOnlyForNamesThatNobodyElseReaches) {
  EXPECT_EQ(warning_of("trainer0", {"127.0.1.1", "192.0.2.7"}), "");
  EXPECT_EQ(warning_of("trainer0", {"192.0.2.7"}), "");
  EXPECT_EQ(warning_of("trainer0", {}), "");  // The name cannot be resolved, which is another error.
  EXPECT_EQ(warning_of("trainer0", {"127.0.1.1"}, {}), "");
  EXPECT_EQ(warning_of("localhost", {"::1", "127.0.0.1"}), "");  // The user says that all are on this machine.
  EXPECT_EQ(warning_of("127.0.0.1", {"127.0.0.1"}), "");
}

class LocalRendezvousTest : public ::testing::Test {
 protected:
  int rounds_prepared = 0;
  LocalRendezvous rendezvous{{.max_restarts = 1}, {.before_round = [this] { ++rounds_prepared; }}};
};

TEST_F(LocalRendezvousTest, RunsAtOnce) {
  EXPECT_EQ(rendezvous.directive().kind, Directive::Kind::kRun);
  EXPECT_FALSE(rendezvous.directive().end);
  EXPECT_EQ(rounds_prepared, 1);
}

TEST_F(LocalRendezvousTest, IsOverWhenTheWorkersSucceed) {
  rendezvous.report({});
  EXPECT_EQ(rendezvous.directive().kind, Directive::Kind::kOver);
  EXPECT_EQ(rendezvous.directive().end->exit_code(), 0);
  EXPECT_TRUE(rendezvous.may_leave());
}

TEST_F(LocalRendezvousTest, RestartsAsOftenAsIsAllowed) {
  rendezvous.report(failure());
  EXPECT_EQ(rendezvous.directive().kind, Directive::Kind::kRun);
  EXPECT_EQ(rendezvous.directive().round.restart_count, 1);
  EXPECT_EQ(rendezvous.directive().end->failure->ending.exit_code, 7);
  EXPECT_EQ(rounds_prepared, 2);
  rendezvous.report(failure());
  EXPECT_EQ(rendezvous.directive().kind, Directive::Kind::kOver);
  EXPECT_EQ(rendezvous.directive().end->exit_code(), 7);
}

TEST_F(LocalRendezvousTest, DoesNotRestartWhatWouldFailAlike) {
  NodeReport report = failure();
  report.failure->is_final = true;
  rendezvous.report(report);
  EXPECT_EQ(rendezvous.directive().kind, Directive::Kind::kOver);
  EXPECT_EQ(rendezvous.directive().end->exit_code(), 7);
}

TEST_F(LocalRendezvousTest, DoesNotRestartWhatASignalStopped) {
  rendezvous.report({.end = NodeReport::End::kInterrupted, .signal = SIGINT});
  EXPECT_EQ(rendezvous.directive().kind, Directive::Kind::kOver);
  EXPECT_EQ(rendezvous.directive().end->exit_code(), 128 + SIGINT);
}

TEST_F(LocalRendezvousTest, DoesNotRestartAFailureAfterASignal) {
  NodeReport report = failure();
  report.signal = SIGTERM;
  rendezvous.report(report);
  EXPECT_EQ(rendezvous.directive().kind, Directive::Kind::kOver);
  EXPECT_EQ(rendezvous.directive().end->exit_code(), 7);
}

TEST_F(LocalRendezvousTest, DoesNotRestartBesideProcessesThatSurvived) {
  NodeReport report = failure();
  report.left_behind = true;
  rendezvous.report(report);
  EXPECT_EQ(rendezvous.directive().kind, Directive::Kind::kOver);
}

TEST_F(LocalRendezvousTest, DoesNotRestartWhatHasRecoveredTooOften) {
  NodeReport report = failure();
  report.used_up = true;
  rendezvous.report(report);
  EXPECT_EQ(rendezvous.directive().kind, Directive::Kind::kOver);
  EXPECT_EQ(rendezvous.directive().end->exit_code(), 7);
}

TEST_F(LocalRendezvousTest, DoesNotRestartWhatCannotBeStarted) {
  rendezvous.report({.end = NodeReport::End::kRefused, .text = "cannot be executed"});
  EXPECT_EQ(rendezvous.directive().kind, Directive::Kind::kOver);
  EXPECT_EQ(rendezvous.directive().end->exit_code(), 2);
}

TEST(SurelyServes, OneNodeTheFirstOfFixedOnesAndWhoIsToldTo) {
  EXPECT_TRUE(surely_serves({}));
  GroupRequest request{.nodes = {.least = 2, .most = 2}};
  EXPECT_TRUE(surely_serves(request));
  request.node_rank = 1;
  EXPECT_FALSE(surely_serves(request));
  request.node_rank = 0;
  request.options.is_host = false;  // The job runs already.
  EXPECT_FALSE(surely_serves(request));
  request = {.nodes = {.least = 1, .most = 2}, .backend = "c10d"};
  EXPECT_FALSE(surely_serves(request));  // not known yet
  request.options.is_host = true;
  EXPECT_TRUE(surely_serves(request));
  request.options.is_host = false;
  EXPECT_FALSE(surely_serves(request));
}

TEST(MayServe, EveryNodeThatMayTakeOver) {
  GroupRequest request{.nodes = {.least = 2, .most = 2}, .node_rank = 1};
  LaunchOptions in_place;
  in_place.in_place = true;
  EXPECT_FALSE(may_serve(request, {}));
  EXPECT_TRUE(may_serve(request, in_place));
  request.node_rank = 0;
  EXPECT_TRUE(may_serve(request, {}));
  EXPECT_TRUE(may_serve({}, {}));
}

JobRendezvous open_job(const GroupRequest& request) {
  return JobRendezvous(request, {.command = {"/bin/train"}, .nproc_per_node = 2}, milliseconds(5));
}

// A request for two nodes that must find out which of them serves the store.
GroupRequest two_elastic_nodes() {
  GroupRequest request{.nodes = {.least = 2, .most = 2},
                       .backend = "c10d",
                       .endpoint = {.host = "127.0.0.1", .port = testing::free_port()}};
  request.options.keep_alive_max_attempt = 1000;  // No node is lost.
  request.options.heartbeat_timeout = testing::kPatience;
  return request;
}

void wait_for(Rendezvous& rendezvous, Directive::Kind kind) {
  const Clock::time_point deadline = Clock::now() + testing::kPatience;
  while (rendezvous.directive().kind != kind && Clock::now() < deadline) {
    testing::pause_between_looks();
  }
  EXPECT_EQ(rendezvous.directive().kind, kind);
}

TEST(JobRendezvous, ServesAStoreForOneNode) {
  JobRendezvous job = open_job({.rdzv_id = "job7", .max_restarts = 3});
  const Directive directive = job.get().directive();
  EXPECT_EQ(directive.kind, Directive::Kind::kRun);
  EXPECT_EQ(directive.round.master_addr, "127.0.0.1");
  EXPECT_EQ(directive.round.run_id, "job7");
  EXPECT_EQ(directive.round.world_size, 2);
  EXPECT_EQ(directive.round.role_world_size, 2);
  EXPECT_EQ(directive.round.max_restarts, 3);
  milliseconds left = testing::kPatience;
  EXPECT_EQ(try_to_reach("127.0.0.1", directive.round.master_port, left), "");
}

TEST(JobRendezvous, TellsRanksWhoHasEndedUntilTheNextRound) {
  JobRendezvous job = open_job({.rdzv_id = "job7", .max_restarts = 1});
  const int64_t port = job.get().directive().round.master_port;
  const network::TcpStorePtr store = network::reach_tcp_store("127.0.0.1", port, testing::kPatience);
  const std::string key = rendezvous::job_prefix("job7") + "/" + rendezvous::kEndedRank;
  job.get().rank_succeeded({.rank_on_node = 1});
  EXPECT_NO_THROW(store->wait({key}, testing::kPatience));  // TCPStore::set returns before the key is set.
  job.get().report(failure());
  EXPECT_FALSE(store->check({key}));
}

TEST(JobRendezvous, AnnouncesStartsUntilTheNextRound) {
  JobRendezvous job = open_job({.rdzv_id = "job7", .max_restarts = 1});
  const int64_t port = job.get().directive().round.master_port;
  const network::TcpStorePtr store = network::reach_tcp_store("127.0.0.1", port, testing::kPatience);
  const std::string key = rendezvous::job_prefix("job7") + "/" + rendezvous::kStarts;
  job.get().announce_start({1});
  job.get().announce_start({0});
  EXPECT_EQ(job.get().announced_start({1}), 1);
  EXPECT_EQ(job.get().announced_start({0}), 2);
  EXPECT_EQ(store->get_to_str(key), "2");
  job.get().report(failure());
  EXPECT_FALSE(store->check({key}));
}

TEST(JobRendezvous, ReadsWhichRanksAreSilent) {
  JobRendezvous job = open_job({.rdzv_id = "job7"});
  const int64_t port = job.get().directive().round.master_port;
  const network::TcpStorePtr store = network::reach_tcp_store("127.0.0.1", port, testing::kPatience);
  const std::string key = rendezvous::job_prefix("job7") + "/" + rendezvous::silent_key(0, 1);
  store->set(key, std::vector<uint8_t>{'4'});
  store->wait({key}, testing::kPatience);
  EXPECT_EQ(job.get().silent_ranks({RankOfNode{0, 0}, RankOfNode{0, 1}}), (SilentRanks{{{0, 1}, 4}}));
  EXPECT_EQ(job.get().silent_ranks({RankOfNode{0, 0}}), SilentRanks());
}

TEST(JobRendezvous, RefusesAPortInUse) {
  const network::ListeningSocket other = testing::loopback_socket();
  const GroupRequest request{.nodes = {.least = 2, .most = 2}, .endpoint = {.host = "127.0.0.1", .port = other.port()}};
  EXPECT_EQ(testing::error_message<c10::ValueError>([&] { open_job(request); }),
            "--master_port=" + std::to_string(other.port()) + ": cannot be used: Address already in use");
}

// Otherwise only the second one would end, and the first one wait for it.
TEST(JobRendezvous, TwoHostsWithDifferentBackendsDisagree) {
  GroupRequest request = two_elastic_nodes();
  JobRendezvous first = open_job(request);
  StoreMember look(network::reach_tcp_store("127.0.0.1", request.endpoint.port, testing::kPatience));
  while (look.backend().empty()) {
    testing::pause_between_looks();
  }
  request.backend = kStaticBackend;
  JobRendezvous second = open_job(request);
  for (JobRendezvous* const job : {&first, &second}) {
    wait_for(job->get(), Directive::Kind::kOver);
    const GroupEnd end = *job->get().directive().end;
    EXPECT_EQ(end.exit_code(), 2);
    EXPECT_EQ(end.text.find("launchers disagree: --rdzv_backend is c10d on "), 0U) << end.text;
  }
}

TEST(JobRendezvous, NamesTheFlagOfAnAddressThatIsNotItsOwn) {
  // 192.0.2.0/24 is reserved for documentation (RFC 5737), so no machine has it.
  EXPECT_EQ(testing::error_message<c10::ValueError>([] { open_job({.local_addr = "192.0.2.1"}); }),
            "--local_addr=192.0.2.1: not an address of this machine, where the job's store is served");
}

TEST(JobRendezvous, LetsTheFirstToListenServeSeveralNodes) {
  const GroupRequest request = two_elastic_nodes();
  JobRendezvous host = open_job(request);
  JobRendezvous other = open_job(request);
  for (JobRendezvous* job : {&host, &other}) {
    wait_for(job->get(), Directive::Kind::kRun);
    EXPECT_EQ(job->get().directive().round.world_size, 4);
  }
  for (JobRendezvous* job : {&host, &other}) {
    job->get().report({});
  }
  for (JobRendezvous* job : {&host, &other}) {
    wait_for(job->get(), Directive::Kind::kOver);
    EXPECT_EQ(job->get().directive().end->exit_code(), 0);
  }
}

// An earlier job's launcher still listens, and is about to end: then nobody serves.
TEST(JobRendezvous, OneOfTwoServesWhenTheListenerThatTheyFoundHasEnded) {
  const GroupRequest request = two_elastic_nodes();
  std::optional<network::ListeningSocket> earlier = open_store_socket("127.0.0.1", request.endpoint.port, {});
  JobRendezvous one = open_job(request);
  JobRendezvous other = open_job(request);
  std::this_thread::sleep_for(milliseconds(200));  // They wait for its answer.
  earlier.reset();
  for (JobRendezvous* job : {&one, &other}) {
    wait_for(job->get(), Directive::Kind::kRun);
    EXPECT_EQ(job->get().directive().round.world_size, 4);
  }
}

// Its end is not theirs.
TEST(JobRendezvous, LaunchersThatComeWhenAJobIsOverBeginAnother) {
  const GroupRequest request = two_elastic_nodes();
  std::optional<JobRendezvous> host(std::in_place, request, LaunchOptions{.command = {"/bin/train"}}, milliseconds(5));
  std::optional<JobRendezvous> member(std::in_place, request, LaunchOptions{.command = {"/bin/train"}},
                                      milliseconds(5));
  for (JobRendezvous* job : {&*host, &*member}) {
    wait_for(job->get(), Directive::Kind::kRun);
    job->get().report({});
  }
  wait_for(host->get(), Directive::Kind::kOver);
  JobRendezvous one = open_job(request);
  JobRendezvous other = open_job(request);
  std::this_thread::sleep_for(milliseconds(200));
  EXPECT_EQ(one.get().directive().kind, Directive::Kind::kWait);
  member.reset();
  host.reset();
  for (JobRendezvous* job : {&one, &other}) {
    wait_for(job->get(), Directive::Kind::kRun);
    EXPECT_EQ(job->get().directive().round.world_size, 4);
  }
}

}  // namespace
}  // namespace narrowcast::launcher
