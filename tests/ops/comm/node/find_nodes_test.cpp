#include "ops/comm/node/find_nodes.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <optional>
#include <string>
#include <system_error>

#include "tests/support/error_message.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/ranks.h"

namespace narrowcast::node {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::fork_ranks;
using ::testing::HasSubstr;
using testing::kRankPassed;
using testing::run_ranks;
using testing::wait_for_ranks;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

class FindNodesOf : public ::testing::TestWithParam<int64_t> {};

TEST_P(FindNodesOf, TakesAllRanksOfAMachineForANode) {
  const int64_t world_size = GetParam();
  run_ranks(world_size, [&](int64_t rank, const Group& group) {
    const auto found = find_nodes(group);
    EXPECT_EQ(found->layout.nodes(), 1);
    EXPECT_EQ(found->why_flat, "");
    if (world_size == 1) {
      EXPECT_EQ(found->memory, nullptr);
      return;
    }
    ASSERT_NE(found->memory, nullptr);
    EXPECT_EQ(found->memory->local_rank(), rank);
    const SlotUse use = found->memory->take_slot(0);
    found->memory->staging_buffer(use, rank, 10)[9] = static_cast<float>(rank);
    wait_for_ranks(group);
    for (int64_t other = 0; other < world_size; ++other) {
      EXPECT_EQ(found->memory->staging_buffer(use, other, 10)[9], static_cast<float>(other));
    }
    EXPECT_EQ(find_nodes(group), found) << "found once";
    wait_for_ranks(group);
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, FindNodesOf, ::testing::Values(1, 2, 3, 5, 8));

TEST(FindNodes, TakesConsecutiveRanksWhereItIsTold) {
  run_ranks(5, [](int64_t rank, const Group& group) {
    const auto found = find_nodes(group, 2);
    EXPECT_EQ(found->layout, NodeLayout::of_size(5, 2));
    ASSERT_NE(found->memory, nullptr);
    EXPECT_EQ(found->memory->local_rank(), rank % 2);
    EXPECT_EQ(found->memory->local_size(), rank == 4 ? 1 : 2);
    EXPECT_EQ(find_nodes(group, 1)->layout, NodeLayout::flat(5));
    EXPECT_THROW(find_nodes(group, 0), c10::ValueError);
  });
}

TEST(FindNodes, WorksBetweenProcesses) {
  const auto codes = fork_ranks(3, [](int64_t rank, const Group& group) {
    const auto found = find_nodes(group);
    const SlotUse use = found->memory->take_slot(1);
    found->memory->staging_buffer(use, rank, 1)[0] = static_cast<float>(10 + rank);
    found->memory->reach(Phase::kStaged, use);
    wait_for_ranks(group);
    EXPECT_TRUE(found->memory->all_have_reached(Phase::kStaged, use));
    EXPECT_EQ(found->memory->staging_buffer(use, (rank + 1) % 3, 1)[0], static_cast<float>(10 + (rank + 1) % 3));
    wait_for_ranks(group);
  });
  EXPECT_THAT(codes, ElementsAre(kRankPassed, kRankPassed, kRankPassed));
}

// Rank 0 makes the memory. If the system refuses it, all ranks must learn that.
TEST(FindNodes, IsFlatWhereARankCannotHaveMemory) {
  const auto codes = fork_ranks(3, [](int64_t rank, const Group& group) {
    std::optional<testing::FileSizeLimit> limit;
    if (rank == 0) limit.emplace(1 << 20);
    const auto found = find_nodes(group);
    EXPECT_EQ(found->layout, NodeLayout::flat(3));
    EXPECT_EQ(found->memory, nullptr);
    EXPECT_EQ(found->neighbours, NodeLayout::of_size(3, 3));
    EXPECT_THAT(found->why_flat, AllOf(HasSubstr("rank 0: "), HasSubstr("limited to 1048576")));
    EXPECT_THAT(testing::error_message<c10::ValueError>([&] { find_nodes(group, 3); }),
                AllOf(HasSubstr("node_size: 3"), HasSubstr("rank 0: ")));
    wait_for_ranks(group);
  });
  EXPECT_THAT(codes, ElementsAre(kRankPassed, kRankPassed, kRankPassed));
}

// Allows this process to map `bytes` more than now. It is called in a fork, because the limit stays until the process
// ends.
void limit_mappings(int64_t bytes) {
  int64_t mapped_pages = 0;
  std::ifstream("/proc/self/statm") >> mapped_pages;
  const auto limit = static_cast<rlim_t>(mapped_pages * ::sysconf(_SC_PAGESIZE) + bytes);
  const rlimit limits = {.rlim_cur = limit, .rlim_max = limit};
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &limits), 0);
}

// The system refuses to map the memory. Rank 0 makes the memory and then requests less; rank 1 opens it.
TEST(FindNodes, IsFlatWhereARankCannotMapTheMemory) {
  for (const int64_t limited : {0, 1}) {
    const auto codes = fork_ranks(2, [=](int64_t rank, const Group& group) {
      find_nodes(group, 2);  // Frees the memory of other tests' groups.
      if (rank == limited)
        limit_mappings(limited == 0 ? 2 * NodeMemory::kLeastBuffer : NodeMemory::reserved_bytes() / 2);
      const auto found = find_nodes(group);
      EXPECT_EQ(found->layout, NodeLayout::flat(2));
      EXPECT_EQ(found->memory, nullptr);
      EXPECT_THAT(found->why_flat, AllOf(HasSubstr("rank " + std::to_string(limited) + ": mmap of "),
                                         HasSubstr("Cannot allocate memory")));
      wait_for_ranks(group);
    });
    EXPECT_THAT(codes, ElementsAre(kRankPassed, kRankPassed));
  }
}

TEST(FindNodes, TakesLessMemoryWhereTheSystemRefusesAsMuch) {
  const auto codes = fork_ranks(2, [](int64_t rank, const Group& group) {
    find_nodes(group, 2);
    const int64_t granted = 20 * NodeMemory::kLeastBuffer;
    limit_mappings(granted);
    const auto found = find_nodes(group);
    EXPECT_EQ(found->why_flat, "");
    ASSERT_NE(found->memory, nullptr);
    const SlotUse use = found->memory->take_slot(0);
    constexpr int64_t kNumel = NodeMemory::kLeastBuffer / sizeof(float);
    found->memory->staging_buffer(use, rank, kNumel)[kNumel - 1] = static_cast<float>(10 + rank);
    wait_for_ranks(group);
    EXPECT_EQ(found->memory->staging_buffer(use, 1 - rank, kNumel)[kNumel - 1], static_cast<float>(11 - rank));
    EXPECT_NO_THROW(SharedMemory::create(granted / 4)) << "as much is left to the process";
    EXPECT_THROW(SharedMemory::create(granted), std::system_error);
    wait_for_ranks(group);
  });
  EXPECT_THAT(codes, ElementsAre(kRankPassed, kRankPassed));
}

}  // namespace
}  // namespace narrowcast::node
