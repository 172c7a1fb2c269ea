#include "ops/comm/groups/broken_groups.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <future>
#include <stdexcept>
#include <utility>

#include "tests/support/breakable_group.h"
#include "tests/support/error_message.h"

namespace narrowcast::collectives {
namespace {

using testing::breakable_group;

TEST(BreakOff, EndsTheGroupAndAllThatWereSplitOffItOnce) {
  const auto [group, backend] = breakable_group();
  const auto [node, of_node] = breakable_group();
  const auto [owners, of_owners] = breakable_group();
  const auto [unrelated, of_unrelated] = breakable_group();
  const SplitGroup split_node(group, node);
  const SplitGroup split_owners(node, owners);  // off a group that was split off itself
  EXPECT_EQ(why_broken_off(group), "");
  break_off(group, "rank 1 is lost");
  break_off(group, "rank 2 is lost");
  for (const auto& one : {backend, of_node, of_owners}) {
    EXPECT_EQ(one->aborts(), 1);
  }
  EXPECT_EQ(of_unrelated->aborts(), 0);
  EXPECT_EQ(why_broken_off(group), "rank 1 is lost");
  EXPECT_EQ(why_broken_off(owners), "rank 1 is lost");
}

// Each abort returns only when all aborts have begun.
TEST(BreakOff, WaitsForNoneBeforeItEndsTheOthers) {
  const auto [group, backend] = breakable_group();
  const auto [node, of_node] = breakable_group();
  const SplitGroup split(group, node);
  std::promise<void> first;
  std::promise<void> second;
  backend->before_abort = [&, theirs = second.get_future().share()] {
    first.set_value();
    EXPECT_EQ(theirs.wait_for(testing::kPatience), std::future_status::ready);
  };
  of_node->before_abort = [&, theirs = first.get_future().share()] {
    second.set_value();
    EXPECT_EQ(theirs.wait_for(testing::kPatience), std::future_status::ready);
  };
  break_off(group, "rank 1 is lost");
}

TEST(BreakOff, EndsTheOthersIfOneCannotBeEnded) {
  const auto [group, backend] = breakable_group();
  const auto [node, of_node] = breakable_group();
  const SplitGroup split(group, node);
  backend->before_abort = [] { throw std::runtime_error("no"); };
  EXPECT_NO_THROW(break_off(group, "rank 1 is lost"));
  EXPECT_EQ(of_node->aborts(), 1);
}

TEST(BreakOff, EndsWhatIsSplitOffLater) {
  const auto [group, backend] = breakable_group();
  break_off(group, "rank 1 is lost");
  const auto [node, of_node] = breakable_group();
  {
    const SplitGroup split(group, node);
    EXPECT_EQ(of_node->aborts(), 1);
    EXPECT_EQ(why_broken_off(node), "rank 1 is lost");
  }
  EXPECT_EQ(of_node->shutdowns(), 0);
}

TEST(BreakOff, MakesResultsInvalid) {
  const auto [group, backend] = breakable_group();
  const auto [node, of_node] = breakable_group();
  const SplitGroup split(group, node);
  EXPECT_NO_THROW(wait_for_results(group));
  of_node->error = c10d::ErrorType::TIMEOUT;
  EXPECT_EQ(testing::error_message<c10::DistBackendError>([&, &group = group] { wait_for_results(group); }),
            "rank 0: a collective timed out");
  break_off(group, "rank 0: rank 1 is lost");
  EXPECT_EQ(testing::error_message<c10::DistBackendError>([&, &group = group] { wait_for_results(group); }),
            "rank 0: rank 1 is lost");
}

// Memory of a destroyed group is used again, also for other groups.
TEST(BreakOff, IsOfNoGroupThatIsMadeLater) {
  for (int i = 0; i < 1000; ++i) {
    const auto [group, backend] = breakable_group();
    ASSERT_EQ(why_broken_off(group), "") << "group " << i;
    break_off(group, "rank 1 is lost");
  }
}

TEST(SplitGroup, IsShutDownInTheEnd) {
  const auto [group, backend] = breakable_group();
  const auto [node, of_node] = breakable_group();
  {
    SplitGroup split(group, node);
    const SplitGroup moved = std::move(split);
    EXPECT_EQ(moved.group(), node);
  }
  EXPECT_EQ(of_node->shutdowns(), 1);
  EXPECT_EQ(of_node->aborts(), 0);
  break_off(group, "rank 1 is lost");
  EXPECT_EQ(of_node->aborts(), 0) << "is gone";
}

TEST(SplitGroup, IsBrokenOffAfterAnException) {
  const auto [group, backend] = breakable_group();
  const auto [node, of_node] = breakable_group();
  try {
    const SplitGroup split(group, node);
    TORCH_CHECK(false);
  } catch (const c10::Error&) {
  }
  EXPECT_EQ(of_node->shutdowns(), 0);
  EXPECT_EQ(of_node->aborts(), 1);
}

TEST(SplitGroup, IsNotBrokenOffTwice) {
  const auto [group, backend] = breakable_group();
  const auto [node, of_node] = breakable_group();
  try {
    const SplitGroup split(group, node);
    break_off(group, "rank 1 is lost");
    TORCH_CHECK(false);
  } catch (const c10::Error&) {
  }
  EXPECT_EQ(of_node->shutdowns(), 0);
  EXPECT_EQ(of_node->aborts(), 1);
}

TEST(SplitGroup, MayBeNone) {
  const SplitGroup none;
  EXPECT_FALSE(none.group());
}

TEST(FailureInBackends, IsWhatABackendHasFoundItself) {
  const auto [group, backend] = breakable_group();
  const auto [node, of_node] = breakable_group();
  const SplitGroup split(group, node);
  EXPECT_EQ(failure_in_backends(group), "");
  of_node->error = c10d::ErrorType::TIMEOUT;
  EXPECT_EQ(failure_in_backends(group), "a collective timed out");
  of_node->error = c10d::ErrorType::COMM_ERROR;
  EXPECT_EQ(failure_in_backends(group), "a collective failed");
}

}  // namespace
}  // namespace narrowcast::collectives
