#include "trainer/launcher/group/store_protocol.h"

#include <gtest/gtest.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <narrowcast/errors.h>
#include "trainer/launcher/group/hosted_store.h"

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
  StoreHost host{store, Coordinator(describe("a", 0), {.silence = milliseconds(1000)}, "made-up"),
                 [this] { ++rounds_prepared; }};
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
  store->add(kLauncherKeys + std::string("tickets"), 1);  // a ticket, and nothing more
  own.join(describe("a", 0));
  other.join(describe("b", 1));
  EXPECT_EQ(step(0).phase, Phase::kRunning);
}

TEST_F(StoreProtocolTest, RefusesAStoreThatHoldsSomethingElse) {
  store->set(kLauncherKeys + std::string("decision"), std::string("text"));
  EXPECT_THROW(other.decision(), CorruptInputError);
}

}  // namespace
}  // namespace narrowcast::launcher
