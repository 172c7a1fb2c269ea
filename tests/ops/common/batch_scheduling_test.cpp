#include "ops/common/batch_scheduling.h"

#include <gtest/gtest.h>

#include <future>

namespace narrowcast {
namespace {

int policy_of_this_thread() { return ::sched_getscheduler(0); }

int policy_of_a_new_thread() { return std::async(std::launch::async, policy_of_this_thread).get(); }

// The functions of sched.h change the calling thread, so each test is a thread of its own.
template <class Body>
void in_a_thread(const Body& body) {
  std::async(std::launch::async, body).get();
}

TEST(BatchScheduling, HoldsForThreadsThatStartMeanwhile) {
  in_a_thread([] {
    ASSERT_EQ(policy_of_this_thread(), SCHED_OTHER);
    {
      const BatchScheduling batch_scheduling;
      EXPECT_EQ(policy_of_a_new_thread(), SCHED_BATCH);
    }
    EXPECT_EQ(policy_of_this_thread(), SCHED_OTHER);
    EXPECT_EQ(policy_of_a_new_thread(), SCHED_OTHER);
  });
}

TEST(BatchScheduling, EndsWithTheOuterScope) {
  in_a_thread([] {
    {
      const BatchScheduling outer;
      { const BatchScheduling inner; }
      EXPECT_EQ(policy_of_this_thread(), SCHED_BATCH);
    }
    EXPECT_EQ(policy_of_this_thread(), SCHED_OTHER);
  });
}

TEST(BatchScheduling, LeavesAnotherPolicyAsItIs) {
  in_a_thread([] {
    const sched_param parameters{};
    ASSERT_EQ(::sched_setscheduler(0, SCHED_IDLE, &parameters), 0);
    {
      const BatchScheduling batch_scheduling;
      EXPECT_EQ(policy_of_a_new_thread(), SCHED_IDLE);
    }
    EXPECT_EQ(policy_of_this_thread(), SCHED_IDLE);
  });
}

}  // namespace
}  // namespace narrowcast
