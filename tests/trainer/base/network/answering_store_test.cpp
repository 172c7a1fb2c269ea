#include "trainer/base/network/answering_store.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include "tests/support/error_message.h"
#include "tests/support/patience.h"

namespace narrowcast::network {
namespace {

using testing::error_message;
using namespace std::chrono_literals;

TEST(Within, ReturnsOrThrowsWhatTheBodyDoes) {
  EXPECT_EQ(within<int>(testing::kPatience, [] { return 7; }), 7);
  EXPECT_THROW(within<int>(testing::kPatience, []() -> int { throw std::runtime_error("no"); }), std::runtime_error);
}

TEST(Within, LeavesBehindWhatDoesNotReturn) {
  const auto gate = std::make_shared<std::promise<void>>();
  const auto ended = std::make_shared<std::promise<void>>();
  std::future<void> end = ended->get_future();
  const std::function<int()> wait = [gate, ended] {
    gate->get_future().wait();
    ended->set_value();
    return 7;
  };
  EXPECT_EQ(within<int>(10ms, wait), std::nullopt);
  gate->set_value();
  EXPECT_EQ(end.wait_for(testing::kPatience), std::future_status::ready);
}

TEST(Within, GivesUpWhenAsked) {
  const auto gate = std::make_shared<std::promise<void>>();
  const std::function<int()> wait = [gate] {
    gate->get_future().wait();
    return 7;
  };
  int looks = 0;
  EXPECT_EQ(within<int>(testing::kPatience, wait, [&] { return ++looks == 2; }), std::nullopt);
  EXPECT_EQ(looks, 2);
  gate->set_value();
}

// A store that answers once the gate is open.
class HangingStore : public c10d::HashStore {
 public:
  std::vector<uint8_t> get(const std::string& key) override {
    open_.wait();
    return HashStore::get(key);
  }
  bool check(const std::vector<std::string>& keys) override {
    open_.wait();
    return HashStore::check(keys);
  }
  void open_gate() { gate_.set_value(); }

 private:
  std::promise<void> gate_;
  std::shared_future<void> open_ = gate_.get_future().share();
};

TEST(AnsweringStore, ThrowsWhereTheStoreDoesNotAnswer) {
  const auto hanging = c10::make_intrusive<HangingStore>();
  hanging->setTimeout(10ms);
  AnsweringStore store(hanging, "10.0.0.1:29400", 10ms);
  const std::string expected = "the store at 10.0.0.1:29400 does not answer";
  EXPECT_EQ(error_message<c10::DistNetworkError>([&] { store.check({"key"}); }), expected);
  EXPECT_EQ(error_message<c10::DistNetworkError>([&] { store.get("key"); }), expected);
  hanging->open_gate();
  store.set_patience(testing::kPatience);
  EXPECT_FALSE(store.check({"key"}));
}

TEST(AnsweringStore, LeavesAStoreThatHasMoved) {
  const auto hanging = c10::make_intrusive<HangingStore>();
  int looks = 0;
  AnsweringStore store(hanging, "10.0.0.1:29400", testing::kPatience, [&] { return ++looks > 2; });
  const std::string expected = "the store at 10.0.0.1:29400 has moved: another launcher serves it";
  EXPECT_EQ(error_message<c10::DistNetworkError>([&] { store.check({"key"}); }), expected) << "while it waits";
  hanging->open_gate();
  EXPECT_EQ(error_message<c10::DistNetworkError>([&] { store.set("key", std::string("value")); }), expected);
  EXPECT_FALSE(hanging->check({"key"})) << "nothing is written there any more";
}

TEST(AnsweringStore, PassesEverythingOn) {
  const c10::intrusive_ptr<c10d::Store> inner = c10::make_intrusive<c10d::HashStore>();
  AnsweringStore store(inner, "here", testing::kPatience);
  store.setTimeout(testing::kPatience);
  EXPECT_EQ(inner->getTimeout(), testing::kPatience);
  EXPECT_EQ(store.getTimeout(), testing::kPatience);
  store.set("key", std::string("value"));
  EXPECT_EQ(inner->get_to_str("key"), "value");
  EXPECT_EQ(store.get_to_str("key"), "value");
  EXPECT_EQ(store.compareSet("key", std::string("value"), std::string("other")), "other");
  EXPECT_EQ(store.add("counter", 2), 2);
  EXPECT_EQ(store.getNumKeys(), 2);
  store.wait({"key"});
  store.wait({"key"}, 1ms);
  EXPECT_TRUE(store.hasExtendedApi());
  store.append("key", {'s'});
  store.multiSet({"a", "b"}, {{1}, {2}});
  EXPECT_EQ(store.multiGet({"a", "b"}), (std::vector<std::vector<uint8_t>>{{1}, {2}}));
  EXPECT_EQ(inner->get_to_str("key"), "others");
  store.queuePush("queue", {3});
  EXPECT_EQ(store.queueLen("queue"), 1);
  EXPECT_EQ(store.queuePop("queue", true), std::vector<uint8_t>{3});
  EXPECT_THAT(store.listKeys(), ::testing::Contains("counter"));
  EXPECT_TRUE(store.deleteKey("key"));
  EXPECT_FALSE(store.check({"key"}));
  EXPECT_TRUE(store.clone()->check({"counter"}));
}

// The time of waiting for a key does not count.
TEST(AnsweringStore, WaitsForKeysAsLongAsAskedFor) {
  const c10::intrusive_ptr<c10d::Store> inner = c10::make_intrusive<c10d::HashStore>();
  AnsweringStore store(inner, "here", testing::kPatience);
  EXPECT_THROW(store.wait({"key"}, 1ms), c10::DistStoreError);
  std::thread writer([inner] { inner->set("key", std::string("value")); });
  store.set_patience(0ms);
  store.wait({"key"}, testing::kPatience);
  writer.join();
}

// A wait ends at the first look after the interruption, long before its own limit.
TEST(AnsweringStore, WaitsCanBeInterrupted) {
  AnsweringStore store(c10::make_intrusive<c10d::HashStore>(), "here", testing::kPatience);
  store.setTimeout(testing::kPatience);
  int looks = 0;
  store.set_interruption([&]() -> std::string { return ++looks < 2 ? "" : "rank 1 was replaced"; });
  EXPECT_EQ(error_message<c10::DistNetworkError>([&] { store.wait({"key"}); }), "rank 1 was replaced");
  EXPECT_EQ(looks, 2);
  EXPECT_EQ(error_message<c10::DistNetworkError>([&] { store.get("key"); }), "rank 1 was replaced");
  EXPECT_EQ(error_message<c10::DistNetworkError>([&] { store.multiGet({"key"}); }), "rank 1 was replaced");
  store.set("key", std::vector<uint8_t>{7});
  EXPECT_EQ(store.get("key"), std::vector<uint8_t>{7}) << "what is there needs no wait";
  store.set_interruption([] { return std::string(); });
  EXPECT_THROW(store.wait({"other"}, 150ms), c10::DistStoreError) << "its own limit counts";
  store.set_interruption(nullptr);
  EXPECT_THROW(store.wait({"other"}, 10ms), c10::DistStoreError);
}

}  // namespace
}  // namespace narrowcast::network
