// A process ends while a thread of its watch still waits for a store. The thread needs the rank's current step then.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include <narrowcast/network_errors.h>
#include "trainer/ddp/process_group/rank_watch.h"

namespace narrowcast {
namespace {

using namespace std::chrono_literals;

constexpr int kAnswered = 7;  // exit codes
constexpr int kAnsweredOther = 8;
constexpr const char* kStep = "a step with a name that is too long to be stored in its string";

// Answers nothing until it is told to, then asks every rank, and keeps the rank's answer.
class WaitingStore final : public c10d::HashStore {
 public:
  c10::intrusive_ptr<c10d::Store> clone() override { return c10::intrusive_ptr<c10d::Store>::reclaim_copy(this); }

  bool check(const std::vector<std::string>& /*keys*/) override {
    if (!is_asked_) {
      is_asked_ = true;
      asked.set_value();
    }
    answers.get_future().wait();
    return true;
  }

  void set(const std::string& /*key*/, const std::vector<uint8_t>& value) override {
    answer.set_value(std::string(value.begin(), value.end()));
    std::promise<void>().get_future().wait();  // The watch waits for this store from now on.
  }

  bool deleteKey(const std::string& /*key*/) override { return true; }

  std::promise<void> asked;    // by the watch, which now waits
  std::promise<void> answers;  // ends the wait
  std::promise<std::string> answer;

 private:
  bool is_asked_ = false;
};

// Never destroyed, as a store that other threads use.
WaitingStore& waiting_store() {
  static WaitingStore& store = *c10::make_intrusive<WaitingStore>().release();
  return store;
}

// Registered before the steps exist, so it would run after their destructor.
void let_the_store_answer() {
  WaitingStore& store = waiting_store();
  std::future<std::string> answer = store.answer.get_future();
  store.answers.set_value();
  const std::string text = answer.get();
  _exit(text.find(std::string("has been in ") + kStep) != std::string::npos ? kAnswered : kAnsweredOther);
}

void exit_while_a_watch_waits() {
  WaitingStore& store = waiting_store();
  std::atexit(&let_the_store_answer);
  std::make_unique<StepScope>(0, kStep).release();  // The rank is in a collective at the exit.
  {
    const RankWatch watch(store.clone(), {.rank = 0, .world_size = 2, .look_every = 1ms});
    store.asked.get_future().wait();
  }  // The watch gives up waiting for its thread.
  std::exit(EXIT_SUCCESS);
}

TEST(StepsAtExitDeathTest, AreThereForAWatchThatIsLeftBehind) {
  EXPECT_EXIT(exit_while_a_watch_waits(), ::testing::ExitedWithCode(kAnswered), "");
}

}  // namespace
}  // namespace narrowcast
