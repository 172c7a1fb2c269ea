// Launchers with a secret, and an attacker who can connect to their store.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include <narrowcast/errors.h>
#include "tests/support/job_secret.h"
#include "tests/support/loopback_socket.h"
#include "trainer/base/program/failure.h"
#include "trainer/launcher/store/hosted_store.h"
#include "trainer/launcher/store/store_host.h"
#include "trainer/launcher/store/store_member.h"

namespace narrowcast::launcher {
namespace {

using std::chrono::milliseconds;
using Phase = Decision::Phase;

const program::JobSecret& known_secret() {
  static const program::JobSecret secret = testing::secret_of("what the launchers know");
  return secret;
}

NodeDescription node_on(const std::string& host, int64_t node_rank) {
  return {.host = host,
          .pid = 7,
          .nproc = 2,
          .node_rank = node_rank,
          .settings = {.backend = "static", .min_nodes = 2, .max_nodes = 2, .max_restarts = 1}};
}

// One run of a job on two nodes over a store.
struct SealedRun {
  explicit SealedRun(const StorePtr& store, const std::string& session)
      : seal{.secret = known_secret(), .job = "job", .session = session},
        host(
            store, Coordinator(node_on("a", 0), {.silence = milliseconds(1000)}, "made-up"), [] {}, seal),
        own(store, seal),
        other(store, {.secret = known_secret(), .job = "job"}) {}

  Decision step(int64_t time) {
    host.step(Clock::time_point(milliseconds(time)));
    return host.decision();
  }

  // Continues until both launchers have joined.
  void begin() {
    ASSERT_TRUE(own.join(node_on("a", 0)));
    ASSERT_TRUE(other.has_host());
    ASSERT_FALSE(other.join(node_on("b", 1))) << "nobody has answered";
    step(0);
    ASSERT_TRUE(other.join(node_on("b", 1)));
    ASSERT_EQ(step(1).phase, Phase::kRunning);
    ASSERT_EQ(other.decision().phase, Phase::kRunning);
  }

  void beat() {
    own.beat();
    other.beat();
  }

  void succeed() {
    own.report({.round = 0, .report = {}});
    other.report({.round = 0, .report = {}});
  }

  const JobSeal seal;
  StoreHost host;
  StoreMember own;
  StoreMember other;
};

// Runs with a store in memory and with a real one.
class SealedProtocolTest : public ::testing::TestWithParam<bool> {
 protected:
  SealedProtocolTest() {
    if (GetParam()) {
      socket_ = testing::loopback_socket();
      hosted_.emplace("127.0.0.1", *socket_);
    }
    store = GetParam() ? StorePtr(hosted_->store()) : StorePtr(c10::make_intrusive<c10d::HashStore>());
    run.emplace(store, "session");
  }

  static std::string key(const std::string& name) { return kLauncherKeys + name; }
  void write(const std::string& name, const std::string& value) const { store->set(key(name), value); }

  // Records the launchers' entries, for a replay in another run.
  std::map<std::string, std::string> recorded() const {
    std::map<std::string, std::string> entries;
    for (const char* const name :
         {"decision", "steps", "node/1/beat", "node/1/report", "node/1/left", "node/1/description", "node/2/beat",
          "node/2/report", "node/2/left", "node/2/description", "node/2/hello", "node/2/welcome"}) {
      if (store->check({key(name)})) entries[name] = store->get_to_str(key(name));
    }
    return entries;
  }

 private:
  std::optional<network::ListeningSocket> socket_;
  std::optional<HostedStore> hosted_;

 protected:
  StorePtr store;
  std::optional<SealedRun> run;
};

TEST_P(SealedProtocolTest, BringsLaunchersTogetherAndToTheEnd) {
  run->begin();
  run->succeed();
  EXPECT_EQ(run->step(100).phase, Phase::kOver);
  EXPECT_EQ(run->other.decision().phase, Phase::kOver);
  EXPECT_EQ(run->host.rejected() + run->other.rejected() + run->own.rejected(), 0);
}

// E.g. because two of them disagree: a third that comes later prints why, too.
TEST_P(SealedProtocolTest, AJobThatEndedBeforeItsFirstRoundIsJoined) {
  ASSERT_TRUE(run->own.join(node_on("a", 0)));
  run->other.join(node_on("b", 0));
  run->step(0);
  ASSERT_TRUE(run->other.join(node_on("b", 0)));
  ASSERT_EQ(run->step(1).phase, Phase::kOver);
  StoreMember late(store, {.secret = known_secret(), .job = "job"});
  late.join(node_on("c", 1));
  run->step(2);
  EXPECT_TRUE(late.join(node_on("c", 1)));
  EXPECT_EQ(late.decision().end->code, program::kWrongUse);
  run->step(3);
  run->other.leave();
  run->step(4);
  EXPECT_FALSE(run->host.everyone_left());
}

TEST_P(SealedProtocolTest, AJobThatHasRunAndIsOverIsNotJoined) {
  run->begin();
  run->succeed();
  ASSERT_EQ(run->step(100).phase, Phase::kOver);
  StoreMember late(store, {.secret = known_secret(), .job = "job"});
  EXPECT_FALSE(late.join(node_on("c", 1)));
  run->step(101);
  EXPECT_FALSE(late.join(node_on("c", 1)));
  EXPECT_TRUE(late.is_over());
}

TEST_P(SealedProtocolTest, AStrangerIsNoMember) {
  const int64_t ticket = store->add(key("tickets"), 1);
  for (const auto& [name, value] : std::map<std::string, std::string>{
           {"beat", "1"}, {"report", ""}, {"left", "0"}, {"hello", "x"}, {"description", to_text(node_on("c", 1))}}) {
    write("node/" + std::to_string(ticket) + "/" + name, value);
  }
  ASSERT_TRUE(run->own.join(node_on("a", 0)));
  run->other.join(node_on("b", 1));
  run->step(0);
  ASSERT_TRUE(run->other.join(node_on("b", 1)));
  const Decision decision = run->step(1);
  EXPECT_EQ(decision.phase, Phase::kRunning);
  EXPECT_EQ(decision.members.size(), 2);
  EXPECT_TRUE(decision.evicted.empty());
  EXPECT_GT(run->host.rejected(), 0);
}

TEST_P(SealedProtocolTest, WhatAStrangerOverwritesOrRemovesComesAgain) {
  run->begin();
  const std::string over = to_text(Decision{.phase = Phase::kOver, .end = GroupEnd{}});
  for (int64_t time = 100; time < 3000; time += 100) {
    for (const char* const name : {"beat", "report", "left", "description"}) {
      write(std::string("node/2/") + name, time % 200 == 0 ? "{}" : "1");
    }
    write("decision", over);
    write("steps", "1000000 0");
    EXPECT_EQ(run->other.decision().phase, Phase::kRunning) << "the last one that was proven";
    run->beat();
    ASSERT_EQ(run->step(time).phase, Phase::kRunning) << time;
    store->deleteKey(key("node/1/left"));
    store->deleteKey(key("node/2/report"));
    store->deleteKey(key("decision"));
    EXPECT_EQ(run->other.decision().phase, Phase::kRunning);
  }
  run->succeed();
  write("node/2/report", "");
  run->beat();
  EXPECT_EQ(run->step(3000).phase, Phase::kOver);
  EXPECT_EQ(run->other.decision().phase, Phase::kOver);
  EXPECT_GT(run->other.rejected(), 0);
}

// The attacker overwrites faster than anybody reads.
TEST_P(SealedProtocolTest, ASignOfLifeThatIsOverwrittenAtOnceIsASign) {
  run->begin();
  int64_t steps = run->other.host_sign().steps;
  for (int64_t time = 500; time <= 20'000; time += 500) {
    run->beat();
    write("node/2/beat", std::to_string(time));
    ASSERT_EQ(run->step(time).phase, Phase::kRunning) << time;
    write("steps", "7 0");
    ASSERT_EQ(run->other.host_sign().steps, ++steps) << time;
  }
}

TEST_P(SealedProtocolTest, AHostWhoseSignWasNeverIntactIsHeard) {
  ASSERT_TRUE(run->own.join(node_on("a", 0)));
  for (int64_t time = 0; time < 2 * SealedEntries::kCopies; ++time) {
    run->own.beat();
    run->step(time);
  }
  ASSERT_TRUE(run->other.has_host());
  ASSERT_FALSE(run->other.join(node_on("b", 1)));
  run->step(300);
  ASSERT_TRUE(run->other.join(node_on("b", 1)));
  write("steps", "");
  const int64_t steps = run->other.host_sign().steps;
  run->step(301);
  write("steps", "");
  EXPECT_EQ(run->other.host_sign().steps, steps + 1);
}

TEST_P(SealedProtocolTest, WhatIsOverwrittenAtOnceArrives) {
  run->begin();
  run->succeed();
  for (const char* const name : {"node/1/report", "node/2/report"}) write(name, "{}");
  ASSERT_EQ(run->step(100).phase, Phase::kOver);
  write("decision", "{}");
  EXPECT_EQ(run->other.decision().phase, Phase::kOver);
  run->other.leave();
  write("node/2/left", "0");
  run->step(200);
  EXPECT_TRUE(run->host.everyone_left());
}

// An attacker who removes every copy causes a heartbeat timeout, which the error reports as tampering.
TEST_P(SealedProtocolTest, SilenceThatAStrangerCausesIsToldFromSilence) {
  run->begin();
  for (int64_t time = 100; time <= 1500; time += 100) {
    run->beat();
    for (const std::string& name : store->listKeys()) {
      if (name.starts_with(key("copy/"))) store->deleteKey(name);
    }
    write("node/2/beat", "theirs");
    run->step(time);
  }
  run->own.report({.round = 0, .report = {.end = NodeReport::End::kStopped}});
  ASSERT_EQ(run->step(1600).phase, Phase::kOver);
  EXPECT_EQ(
      run->host.decision().end->text,
      "node 1 (b) was lost: no heartbeat for 1 s, and another process overwrites or removes its entries in the store");
}

// An attacker replays the entries of one run in the next run of the job.
TEST_P(SealedProtocolTest, WhatWasWrittenInAnotherRunProvesNothing) {
  run->begin();
  run->succeed();
  ASSERT_EQ(run->step(100).phase, Phase::kOver);
  const std::map<std::string, std::string> old = recorded();
  ASSERT_GE(old.size(), 12);
  for (const auto& [name, value] : old) store->deleteKey(key(name));
  store->deleteKey(key("tickets"));
  run.emplace(store, "another session");
  const auto write_old = [&] {
    for (const auto& [name, value] : old) write(name, value);
  };
  ASSERT_TRUE(run->own.join(node_on("a", 0)));
  write_old();
  ASSERT_FALSE(run->other.join(node_on("b", 1)));
  run->own.beat();
  EXPECT_EQ(run->step(0).phase, Phase::kForming) << "the other launcher of before is not here";
  write("decision", old.at("decision"));
  ASSERT_TRUE(run->other.join(node_on("b", 1))) << "the old decision proves nothing, but this run's has a copy";
  EXPECT_EQ(run->step(1).phase, Phase::kRunning);
  EXPECT_EQ(run->other.decision().phase, Phase::kRunning);
  write_old();
  EXPECT_EQ(run->other.decision().phase, Phase::kRunning);
  run->beat();
  EXPECT_EQ(run->step(100).phase, Phase::kRunning) << "nobody has reported";
}

TEST_P(SealedProtocolTest, WhateverBecomesOfTheCounterTheJobGoesOn) {
  run->begin();
  for (const char* const counter : {"x", "", "0", "-7", "99999999999999999999", "1000000000"}) {
    write("tickets", counter);
    run->beat();
    EXPECT_EQ(run->step(100).phase, Phase::kRunning) << counter;
    EXPECT_EQ(store->add(key("tickets"), 0), 2) << "it is put right";
  }
}

// The next launcher gets the host's own ticket.
TEST_P(SealedProtocolTest, ATicketThatWasDrawnBeforeLetsNobodyIn) {
  run->begin();
  write("tickets", "0");
  StoreMember third(store, {.secret = known_secret(), .job = "job"});
  EXPECT_FALSE(third.join(node_on("c", 1)));
  EXPECT_EQ(third.ticket(), 1);
  run->beat();
  EXPECT_EQ(run->step(100).phase, Phase::kRunning);
  EXPECT_FALSE(third.join(node_on("c", 1)));
}

TEST_P(SealedProtocolTest, WhoKnowsAnotherSecretOrNoneIsNotLetIn) {
  ASSERT_TRUE(run->own.join(node_on("a", 0)));
  StoreMember stranger(store, {.secret = testing::secret_of("what others know of"), .job = "job"});
  StoreMember of_another_job(store, {.secret = known_secret(), .job = "another"});
  for (StoreMember* const member : {&stranger, &of_another_job}) {
    EXPECT_TRUE(member->has_host());
    EXPECT_FALSE(member->join(node_on("b", 1)));
    run->step(0);
    EXPECT_FALSE(member->join(node_on("b", 1)));
  }
  EXPECT_THROW(StoreMember(store).has_host(), CorruptInputError);
}

INSTANTIATE_TEST_SUITE_P(Stores, SealedProtocolTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "real" : "in_memory"; });

}  // namespace
}  // namespace narrowcast::launcher
