#include <narrowcast/current_step.h>

#include <gtest/gtest.h>

#include <thread>

namespace narrowcast {
namespace {

TEST(CurrentStepTest, IsTheOneThatBeganLast) {
  EXPECT_EQ(describe_current_step(3), "is in no collective");
  {
    const StepScope outer(3, "backward pass");
    EXPECT_EQ(describe_current_step(3), "has been in backward pass for 0 s");
    {
      const StepScope inner(3, "all-reduce");
      EXPECT_EQ(describe_current_step(3), "has been in all-reduce for 0 s");
    }
    EXPECT_EQ(describe_current_step(3), "has been in backward pass for 0 s");
  }
  EXPECT_EQ(describe_current_step(3), "is in no collective");
}

TEST(CurrentStepTest, BelongsToARankNotToAThread) {
  const StepScope step(4, "backward pass");
  std::thread([] { EXPECT_EQ(describe_current_step(4), "has been in backward pass for 0 s"); }).join();
  EXPECT_EQ(describe_current_step(3), "is in no collective");
  EXPECT_EQ(describe_current_step(5), "is in no collective");
}

}  // namespace
}  // namespace narrowcast
