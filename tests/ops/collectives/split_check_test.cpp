#include "ops/collectives/split_check.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <vector>

#include "ops/collectives/broken_groups.h"
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
  check_splits(group, [&](const Group& split) { told.push_back(split); });
  const SplitGroup split_node(group, node);
  const SplitGroup split_owners(node, owners);  // off a group that was split off itself
  const SplitGroup split_other(other, breakable_group().first);
  EXPECT_EQ(told, (std::vector<Group>{node, owners}));
  check_splits(group, {});
  const SplitGroup later(group, breakable_group().first);
  EXPECT_EQ(told.size(), 2);
}

TEST(CheckSplits, AGroupThatFailsIsBrokenOff) {
  const Group group = breakable_group().first;
  const auto [node, of_node] = breakable_group();
  check_splits(group, [](const Group&) { TORCH_CHECK_WITH(DistBackendError, false, "a stranger"); });
  EXPECT_THROW(SplitGroup(group, node), c10::DistBackendError);
  EXPECT_EQ(of_node->aborts(), 1);
  break_off(group, "rank 1 is lost");
  EXPECT_EQ(of_node->aborts(), 1) << "it is none of the group's any more";
  forget_broken_off(group);
}

}  // namespace
}  // namespace narrowcast::collectives
