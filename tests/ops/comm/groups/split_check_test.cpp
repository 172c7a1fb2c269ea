#include "ops/comm/groups/split_check.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <vector>

#include "ops/comm/groups/broken_groups.h"
#include "tests/support/breakable_group.h"

namespace narrowcast::collectives {
namespace {

using testing::breakable_group;
using Group = SplitGroup::Group;

TEST(CheckSplits, IsToldOfAllThatIsSplitOffTheGroupAndOfNothingElse) {
  const Group group = breakable_group().first;
  const Group node = breakable_group().first;
  const Group owners = breakable_group().first;
  const Group other = breakable_group().first;
  std::vector<Group> told;
  std::vector<std::vector<int64_t>> ranks_told;
  check_splits(group, [&](const Group& split, const std::vector<int64_t>& ranks) {
    told.push_back(split);
    ranks_told.push_back(ranks);
  });
  const SplitGroup split_node(group, node, {1, 0});
  const SplitGroup split_owners(node, owners, {1});  // off a group that was split off itself
  const SplitGroup split_other(other, breakable_group().first);
  EXPECT_EQ(told, (std::vector<Group>{node, owners}));
  EXPECT_EQ(ranks_told, (std::vector<std::vector<int64_t>>{{1, 0}, {0}}));
  check_splits(group, {});
  const SplitGroup later(group, breakable_group().first);
  EXPECT_EQ(told.size(), 2);
}

TEST(CheckSplits, AGroupThatFailsIsBrokenOff) {
  const Group group = breakable_group().first;
  const auto [node, of_node] = breakable_group();
  check_splits(group, [](const Group&, const std::vector<int64_t>&) {
    TORCH_CHECK_WITH(DistBackendError, false, "a stranger");
  });
  EXPECT_THROW(SplitGroup(group, node), c10::DistBackendError);
  EXPECT_EQ(of_node->aborts(), 1);
  break_off(group, "rank 1 is lost");
  EXPECT_EQ(of_node->aborts(), 1) << "it is none of the group's any more";
}

// A rank is lost, so the check could not send anything there.
TEST(CheckSplits, ChecksNothingWhereTheParentIsBrokenOff) {
  const Group group = breakable_group().first;
  const auto [node, of_node] = breakable_group();
  int checks = 0;
  check_splits(group, [&](const Group&, const std::vector<int64_t>&) { ++checks; });
  break_off(group, "rank 1 is lost");
  const SplitGroup split(group, node);
  EXPECT_EQ(checks, 0);
  EXPECT_EQ(of_node->aborts(), 1);
}

}  // namespace
}  // namespace narrowcast::collectives
