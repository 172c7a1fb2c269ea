// A host's store while nodes come and go, and ranks recover in place.
#include "trainer/launcher/store/store_host.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include "trainer/base/network/places.h"
#include "trainer/base/network/tcp_store.h"
#include "trainer/launcher/posix/last_lines.h"
#include "trainer/launcher/store/store_member.h"

namespace narrowcast::launcher {
namespace {

using std::chrono::milliseconds;

// A node with two ranks, in a job that recovers in place with one or two nodes.
NodeDescription node_in_place(const std::string& host) {
  return {.host = host,
          .pid = 7,
          .nproc = 2,
          .settings = {.backend = "c10d", .min_nodes = 1, .max_nodes = 2, .max_restarts = 1, .in_place = true}};
}

// The ranks of the lost node are waited for in vain, those of a newcomer are not.
TEST(StoreProtocolInPlaceTest, TellsRanksTheirPlacesAndLosses) {
  const StorePtr store = c10::make_intrusive<c10d::HashStore>();
  StoreHost host(store, Coordinator(node_in_place("a"), {.silence = milliseconds(1000)}, "made-up"), [] {});
  std::vector<StoreMember> members(3, StoreMember(store));
  const auto step = [&](int64_t time, const std::vector<size_t>& living) {
    for (const size_t member : living) {
      members[member].beat();
    }
    host.step(Clock::time_point(milliseconds(time)));
  };
  const auto entry = [&](const char* name) {
    const std::string key = rendezvous::job_prefix("made-up") + "/" + name;
    return store->check({key}) ? store->get_to_str(key) : "";
  };
  members[0].join_as_host(node_in_place("a"));
  members[1].join(node_in_place("b"));
  step(0, {0, 1});
  EXPECT_EQ(entry(rendezvous::kPlaces), "0 1:2,2:2");
  store->set(rendezvous::job_prefix("made-up") + "/" + rendezvous::kRegroups, std::vector<uint8_t>{'1'});
  step(600, {0});
  step(1200, {0});
  EXPECT_EQ(entry(rendezvous::kPlaces), "1 1:2");
  EXPECT_EQ(entry(rendezvous::kStarts), "1");
  members[2].join(node_in_place("c"));
  step(1300, {0, 2});
  EXPECT_EQ(entry(rendezvous::kPlaces), "2 1:2,3:2") << "its ranks do not tell how far they have come";
  EXPECT_EQ(entry(rendezvous::kStarts), "1");
}

// Another host may take over in each of these states.
TEST(StoreProtocolInPlaceTest, ANewcomerHasAPlaceWhenItsRanksAreReady) {
  const StorePtr store = c10::make_intrusive<c10d::HashStore>();
  const std::string job = rendezvous::job_prefix("made-up") + "/";
  StoreHost host(store, Coordinator(node_in_place("a"), {.last_call = milliseconds(0)}, "made-up"), [] {});
  StoreMember own(store);
  StoreMember newcomer(store);
  const auto expect = [&](const std::string& places, bool is_new) {
    host.step(Clock::time_point());
    EXPECT_EQ(store->get_to_str(job + rendezvous::kPlaces), places);
    EXPECT_EQ(own.decision().members.back().is_new, is_new);
    EXPECT_FALSE(store->check({job + rendezvous::kStarts})) << "nothing was lost";
  };
  own.join_as_host(node_in_place("a"));
  expect("0 1:2", false);
  store->set(job + rendezvous::kRegroups, std::string(rendezvous::kWhenReady));
  newcomer.join(node_in_place("b"));
  expect("0 1:2 2:2", true);
  const std::string ready = job + rendezvous::ready_key(2, 0);
  store->set(job + rendezvous::ready_key(2, 1), std::string("1"));
  expect("0 1:2 2:2", true);
  store->set(ready, std::string("1"));
  expect("1 1:2,2:2", true);
  store->deleteKey(ready);
  expect("2 1:2 2:2", true);
  store->set(ready, std::string("1"));
  expect("3 1:2,2:2", true);
  store->set(job + rendezvous::met_key(2), std::string("1"));
  expect("3 1:2,2:2", false);
  store->deleteKey(ready);
  expect("3 1:2,2:2", false);
}

// A rank that has not learned of the loss may still report that a rank there is silent.
TEST(StoreProtocolInPlaceTest, LateEntriesOfANodeThatIsGoneAreRemoved) {
  const StorePtr store = c10::make_intrusive<c10d::HashStore>();
  const std::string job = rendezvous::job_prefix("made-up") + "/";
  StoreHost host(store, Coordinator(node_in_place("a"), {.silence = milliseconds(1000)}, "made-up"), [] {});
  StoreMember own(store);
  StoreMember other(store);
  const auto step = [&](int64_t time) {
    own.beat();
    host.step(Clock::time_point(milliseconds(time)));
  };
  own.join_as_host(node_in_place("a"));
  other.join(node_in_place("b"));
  step(0);
  store->set(job + rendezvous::kRegroups, std::string(rendezvous::kWhenReady));
  step(600);
  step(1200);
  ASSERT_EQ(host.decision().members.size(), 1U);
  const std::string late = job + rendezvous::silent_key(2, 1);
  store->set(late, std::string("0"));
  step(10'000);
  EXPECT_TRUE(store->check({late}));
  step(70'000);
  EXPECT_FALSE(store->check({late}));
}

// Nodes that join, whose ranks fail while they start; and nodes that work with the others, and are lost.
TEST(StoreProtocolInPlaceTest, NodesThatComeAndGoLeaveNothing) {
  constexpr int64_t kNodes = 1'000;
  const StorePtr store = c10::make_intrusive<c10d::HashStore>();
  const std::string job = rendezvous::job_prefix("made-up") + "/";
  StoreHost host(
      store, Coordinator(node_in_place("a"), {.last_call = milliseconds(0), .silence = milliseconds(10)}, "made-up"),
      [] {});
  StoreMember own(store);
  own.join_as_host(node_in_place("a"));
  int64_t time = 0;
  const auto step = [&] {
    own.beat();
    host.step(Clock::time_point(milliseconds(time += 6)));
  };
  step();
  store->set(job + rendezvous::kRegroups, std::string(rendezvous::kWhenReady));
  const std::vector<uint8_t> one = {'1'};
  FailureRecord failure;
  failure.ending = {.exit_code = 7};
  failure.last_lines = {std::string(kLongestText, 'x')};
  int64_t keys = 0;
  for (int64_t node = 0; node < kNodes; ++node) {
    StoreMember newcomer(store);
    newcomer.join(node_in_place("b"));
    step();
    ASSERT_EQ(host.decision().members.size(), 2U) << node;
    for (const int64_t rank : {0, 1}) {
      store->add(job + rendezvous::signs_key(newcomer.ticket(), rank), 1);
    }
    if (node % 2 == 0) {
      newcomer.report({.round = 0, .report = {.end = NodeReport::End::kFailed, .failure = failure}});
      step();
      newcomer.leave();
    } else {
      store->set(job + rendezvous::ready_key(newcomer.ticket(), 0), one);
      store->set(job + rendezvous::ready_key(newcomer.ticket(), 1), one);
      store->set(job + rendezvous::met_key(newcomer.ticket()), one);
      step();
      step();
    }
    step();
    ASSERT_EQ(host.decision().members.size(), 1U) << node;
    keys = node == 1 ? store->getNumKeys() : keys;
  }
  EXPECT_EQ(store->getNumKeys(), keys);
  EXPECT_EQ(host.known_nodes(), 1);
  EXPECT_EQ(host.decision().losses, kNodes / 2) << "those that had met";
}

}  // namespace
}  // namespace narrowcast::launcher
