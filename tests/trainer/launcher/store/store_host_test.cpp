#include "trainer/launcher/store/store_host.h"

#include <gtest/gtest.h>

#include <chrono>
#include <iterator>
#include <string>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <utility>

#include <narrowcast/errors.h>
#include "tests/support/error_message.h"
#include "trainer/launcher/store/hosted_store.h"
#include "trainer/launcher/store/store_member.h"
#include "trainer/launcher/store/store_protocol.h"

namespace narrowcast::launcher {
namespace {

using std::chrono::milliseconds;
using Phase = Decision::Phase;

// Two launchers of a job over a store in memory, without threads.
class StoreProtocolTest : public ::testing::Test {
 protected:
  static NodeDescription describe(const std::string& host, int64_t node_rank) {
    return {.host = host,
            .pid = 7,
            .nproc = 2,
            .node_rank = node_rank,
            .settings = {.backend = "static", .min_nodes = 2, .max_nodes = 2, .max_restarts = 1}};
  }
  Decision step(int64_t time) {
    host.step(Clock::time_point(milliseconds(time)));
    return own.decision();
  }

  StorePtr store = c10::make_intrusive<c10d::HashStore>();
  int rounds_prepared = 0;
  StoreHost host{store,
                 Coordinator(describe("a", 0), {.silence = milliseconds(1000)}, "made-up"),
                 [this] { ++rounds_prepared; },
                 {},
                 milliseconds(250)};
  StoreMember own{store};
  StoreMember other{store};
};

TEST_F(StoreProtocolTest, ShowsThatThereIsAHost) {
  EXPECT_TRUE(other.has_host());
  EXPECT_FALSE(StoreMember(c10::make_intrusive<c10d::HashStore>()).has_host());
}

TEST_F(StoreProtocolTest, BringsLaunchersTogether) {
  own.join(describe("a", 0));
  EXPECT_EQ(step(0).phase, Phase::kForming);
  EXPECT_EQ(rounds_prepared, 0);
  other.join(describe("b", 1));
  EXPECT_EQ(step(100).phase, Phase::kRunning);
  EXPECT_EQ(rounds_prepared, 1);
  EXPECT_EQ(other.decision().members.at(1).ticket, other.ticket());
  EXPECT_EQ(other.decision().run_id, "made-up");
}

// It would lead those away that come later.
TEST_F(StoreProtocolTest, AJobThatHasBegunIsNotToldOfAnother) {
  EXPECT_FALSE(StoreMember(c10::make_intrusive<c10d::HashStore>()).awaits_first_round());
  own.join(describe("a", 0));
  step(0);
  EXPECT_TRUE(other.awaits_first_round());
  other.join(describe("b", 1));
  EXPECT_EQ(step(100).phase, Phase::kRunning);
  EXPECT_FALSE(other.awaits_first_round());
}

TEST_F(StoreProtocolTest, CarriesReportsAndTheEnd) {
  own.join(describe("a", 0));
  other.join(describe("b", 1));
  step(0);
  FailureRecord failure;
  failure.ending = {.exit_code = 7};
  other.report({.round = 0, .report = {.end = NodeReport::End::kFailed, .failure = failure}});
  EXPECT_EQ(step(100).phase, Phase::kStopping);
  own.report({.round = 0, .report = {.end = NodeReport::End::kStopped}});
  step(200);
  EXPECT_EQ(step(300).phase, Phase::kRunning);
  EXPECT_EQ(rounds_prepared, 2);
  EXPECT_EQ(other.decision().end->failure->ending.exit_code, 7);
  own.report({.round = 1, .report = {}});
  other.report({.round = 1, .report = {}});
  EXPECT_EQ(step(400).phase, Phase::kOver);
  EXPECT_FALSE(host.everyone_left());
  other.leave();
  step(500);
  EXPECT_TRUE(host.everyone_left());
}

TEST_F(StoreProtocolTest, NoticesWhoStopsToBeat) {
  own.join(describe("a", 0));
  other.join(describe("b", 1));
  step(0);
  for (const int64_t time : {500, 1000}) {
    own.beat();
    EXPECT_EQ(step(time).phase, Phase::kRunning);
  }
  own.beat();
  EXPECT_EQ(step(1001).phase, Phase::kStopping);
}

TEST_F(StoreProtocolTest, PassesOverWhoDiedWhileIntroducingItself) {
  store->add(kLauncherKeys + std::string("tickets"), 1);  // a ticket and nothing else
  own.join(describe("a", 0));
  other.join(describe("b", 1));
  EXPECT_EQ(step(0).phase, Phase::kRunning);
}

TEST_F(StoreProtocolTest, RefusesAStoreThatHoldsSomethingElse) {
  store->set(kLauncherKeys + std::string("decision"), std::string("text"));
  EXPECT_THROW(other.decision(), CorruptInputError);
}

// An attacker can write to the store. The other launchers continue.
class StrangerInTheStoreTest : public StoreProtocolTest {
 protected:
  void write(const std::string& name, const std::string& value) { store->set(kLauncherKeys + name, value); }
  // Joins with a launcher's entries, one of which is the attacker's.
  void join_with(const std::string& name, const std::string& value) {
    const int64_t ticket = store->add(kLauncherKeys + std::string("tickets"), 1);
    const std::string node = "node/" + std::to_string(ticket) + "/";
    for (const auto& [key, good] : {std::pair("beat", "1"), std::pair("report", ""), std::pair("left", "0")}) {
      write(node + key, good);
    }
    write(node + "description", to_text(describe("c", 1)));
    write(node + name, value);
  }
};

TEST_F(StrangerInTheStoreTest, WhoCannotBeReadIsTurnedAwayAlone) {
  const std::pair<const char*, std::string> entries[] = {
      {"description", "text"},
      {"description", std::string(8 << 20, '{')},
      {"description", R"({"host":"c","pid":7,"nproc":-1,"node_rank":1,"role":"r","settings":{}})"},
      {"beat", "many"},
      {"report", R"({"round":0,"report":{"end":9}})"},
      {"report", "\xff"}};
  for (const auto& [name, value] : entries) join_with(name, value);
  own.join(describe("a", 0));
  other.join(describe("b", 1));
  const Decision decision = step(0);
  EXPECT_EQ(decision.phase, Phase::kRunning);
  ASSERT_EQ(decision.members.size(), 2);
  EXPECT_EQ(decision.members[1].ticket, other.ticket());
  ASSERT_EQ(decision.evicted.size(), std::size(entries));
  for (const auto& [ticket, end] : decision.evicted) {
    EXPECT_LE(ticket, static_cast<int64_t>(std::size(entries)));
    EXPECT_EQ(end.code, 4);
    EXPECT_NE(end.text.find("the host cannot read this launcher's entries: the launchers' store does not hold "),
              std::string::npos)
        << end.text;
  }
}

// Launchers that come and go, any number of times, leave nothing in the store, and are not read again.
TEST_F(StrangerInTheStoreTest, NodesThatWereTurnedAwayAreForgotten) {
  own.join(describe("a", 0));
  join_with("description", "{");
  step(0);
  const int64_t ticket = own.decision().evicted.begin()->first;
  EXPECT_FALSE(store->check({node_key(ticket, "description")}));
  EXPECT_FALSE(store->check({node_key(ticket, "beat")}));
  EXPECT_TRUE(store->check({node_key(own.ticket(), "beat")}));
  step(100);
  EXPECT_TRUE(own.decision().evicted.contains(ticket)) << "it may still read that";
}

// With any number of strangers, the decision stays short, and all of them stay turned away.
TEST_F(StrangerInTheStoreTest, TheDecisionTellsOfTheLastStrangersOnly) {
  constexpr int64_t kStrangers = 1000;
  own.join(describe("a", 0));
  NodeDescription other_job = describe(std::string(500, '\x01'), 1);
  other_job.settings.rdzv_id = std::string(kLongestName, '\x01');
  for (int64_t stranger = 0; stranger < kStrangers; ++stranger) {
    join_with("description", std::string(1000, '{'));
    join_with("beat", std::string(1000, '\x01'));
  }
  for (int64_t time = 0; time < 10; ++time) {
    own.beat();
    const Decision decision = step(time);
    EXPECT_EQ(decision.phase, Phase::kForming);
    EXPECT_LE(to_text(decision).size(), size_t{1} << 20);
  }
  const Decision decision = own.decision();
  EXPECT_EQ(decision.evicted.size(), Coordinator::kMostListed);
  EXPECT_TRUE(decision.evicted.contains(2 * kStrangers + 1));
  other.join(describe("b", 1));
  EXPECT_EQ(step(10).phase, Phase::kRunning);
  for (int64_t stranger = 0; stranger < kStrangers; ++stranger) join_with("description", to_text(other_job));
  for (int64_t time = 11; time < 16; ++time) {
    own.beat();
    other.beat();
    const Decision running = step(time);
    EXPECT_EQ(running.phase, Phase::kRunning);
    EXPECT_LE(to_text(running).size(), size_t{4} << 20);
  }
}

TEST_F(StrangerInTheStoreTest, ACounterThatIsNoNumberEndsNoHost) {
  own.join(describe("a", 0));
  other.join(describe("b", 1));
  ASSERT_EQ(step(0).phase, Phase::kRunning);
  store->set(kLauncherKeys + std::string("tickets"), std::string("many"));
  EXPECT_EQ(step(100).phase, Phase::kRunning);
}

// A valid decision that the host did not write ends the job. Only a secret prevents that.
TEST_F(StrangerInTheStoreTest, AForgedDecisionIsBelieved) {
  own.join(describe("a", 0));
  other.join(describe("b", 1));
  ASSERT_EQ(step(0).phase, Phase::kRunning);
  Decision forged = other.decision();
  forged.phase = Phase::kOver;
  forged.end = GroupEnd{.cause = GroupEnd::Cause::kAborted, .text = "forged", .code = 3};
  write("decision", to_text(forged));
  EXPECT_EQ(other.decision().end->text, "forged");
}

TEST_F(StrangerInTheStoreTest, AMemberWhoseEntriesAreSpoiltIsLost) {
  own.join(describe("a", 0));
  other.join(describe("b", 1));
  ASSERT_EQ(step(0).phase, Phase::kRunning);
  write("node/2/report", "{}");
  EXPECT_EQ(step(100).phase, Phase::kStopping);
  own.report({.round = 0, .report = {.end = NodeReport::End::kStopped}});
  const Decision over = step(200);
  EXPECT_EQ(over.phase, Phase::kOver);
  EXPECT_NE(over.end->text.find("does not hold a report"), std::string::npos) << over.end->text;
}

TEST_F(StrangerInTheStoreTest, EntriesThatAreGoneAreNotWaitedFor) {
  own.join(describe("a", 0));
  other.join(describe("b", 1));
  ASSERT_EQ(step(0).phase, Phase::kRunning);
  store->deleteKey(kLauncherKeys + std::string("node/2/beat"));
  EXPECT_EQ(step(100).phase, Phase::kStopping);
  join_with("left", "0");
  store->deleteKey(kLauncherKeys + std::string("node/3/left"));  // It has not introduced itself.
  step(200);
}

// Reading that many tickets would take minutes, and a launcher could not tell whose numbers they are.
TEST_F(StrangerInTheStoreTest, ACounterThatIsAddedToEndsWhoComesNextAndNotTheHost) {
  own.join(describe("a", 0));
  store->add(kLauncherKeys + std::string("tickets"), 1'000'000'000);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(step(0).phase, Phase::kForming);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
  EXPECT_EQ(testing::error_message<CorruptInputError>([&] { other.join(describe("b", 1)); }),
            "the launchers' store counts 1000000002 launchers: another process writes to it");
}

TEST_F(StoreProtocolTest, TheHostGivesSigns) {
  EXPECT_EQ(other.host_sign().steps, 1);
  EXPECT_EQ(other.host_sign().pause, milliseconds(250));
  own.join(describe("a", 0));
  step(0);
  EXPECT_EQ(other.host_sign().steps, 2);
}

}  // namespace
}  // namespace narrowcast::launcher
