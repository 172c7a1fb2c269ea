// The levels of the quantised all-reduce on the CPU.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <narrowcast/quantized_all_reduce.h>
#include "ops/collectives/all_reduce/operator/announced_call.h"
#include "ops/comm/engine/engine.h"
#include "tests/ops/affine_uint8/reference.h"
#include "tests/ops/collectives/all_reduce/algorithms/reference_all_reduce.h"
#include "tests/support/error_message.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/ranks.h"

namespace narrowcast::collectives {
namespace {

using node::find_nodes;
using node::FoundNodes;
using node::NodeLayout;
using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::error_message;
using testing::fork_ranks;
using ::testing::HasSubstr;
using testing::kRankPassed;
using testing::run_ranks;
using testing::wait_for_ranks;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

constexpr WireFormat kFormats[] = {WireFormat::kInt8B128, WireFormat::kBf16, WireFormat::kFp32, WireFormat::kVar5};

std::vector<at::Tensor> arrays_of(int64_t ranks, int64_t numel) {
  at::manual_seed(ranks);
  std::vector<at::Tensor> arrays;
  for (int64_t rank = 0; rank < ranks; ++rank) arrays.push_back(at::randn({numel}));
  return arrays;
}

// From now on the operator takes every `node_size` consecutive ranks for a node.
void set_node_size(const Group& group, int64_t node_size) {
  GroupWorkspace::of(group)->set_nodes(find_nodes(group, node_size));
}

at::Tensor mean_of_operator(const at::Tensor& array, WireFormat format, const Group& group,
                            Levels levels = Levels::kAuto) {
  return quantized_all_reduce(array, format, group, levels);
}

// With the link of the operators, whose NICs the owners of segments share.
at::Tensor expected_mean(WireFormat format, const std::vector<at::Tensor>& arrays, const NodeLayout& layout) {
  return mean_over_nodes({format}, arrays, layout, LinkCost().shared_by(layout.segments()));
}

// Number of ranks, ranks per node, elements.
class OperatorOverNodes : public ::testing::TestWithParam<std::tuple<int64_t, int64_t, int64_t>> {};

TEST_P(OperatorOverNodes, MatchesItsDefinitionBitForBitOnAllRanks) {
  const auto [ranks, node_size, numel] = GetParam();
  const auto arrays = arrays_of(ranks, numel);
  const NodeLayout layout = NodeLayout::of_size(ranks, node_size);
  std::vector<at::Tensor> in_levels;
  std::vector<at::Tensor> in_one_level;
  for (const WireFormat format : kFormats) {
    in_levels.push_back(expected_mean(format, arrays, layout));
    in_one_level.push_back(expected_mean(format, arrays, NodeLayout::flat(ranks)));
  }
  run_ranks(ranks, [&](int64_t rank, const Group& group) {
    set_node_size(group, node_size);
    for (size_t i = 0; i < std::size(kFormats); ++i) {
      const auto is_equal = [&](Levels levels, const at::Tensor& expected) {
        return test::same_bits(mean_of_operator(arrays[rank], kFormats[i], group, levels), expected);
      };
      EXPECT_TRUE(is_equal(Levels::kAuto, in_levels[i])) << kFormats[i];
      EXPECT_TRUE(is_equal(Levels::kOne, in_one_level[i])) << kFormats[i];
      EXPECT_TRUE(is_equal(Levels::kTwo, in_levels[i])) << kFormats[i];
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Mean, OperatorOverNodes,
                         ::testing::Combine(::testing::Values(2, 3, 4, 5, 8), ::testing::Values(2, 3, 8),
                                            ::testing::Values(0, 1, 5000, 60'003)));

TEST(OperatorOverProcesses, AveragesInTheMemoryOfEachNode) {
  const auto arrays = arrays_of(4, 40'001);
  const at::Tensor expected = expected_mean(WireFormat::kInt4B32, arrays, NodeLayout::of_size(4, 2));
  const auto codes = fork_ranks(4, [&](int64_t rank, const Group& group) {
    set_node_size(group, 2);
    for (int time = 0; time < 3; ++time) {
      EXPECT_TRUE(test::same_bits(mean_of_operator(arrays[rank], WireFormat::kInt4B32, group), expected));
    }
    wait_for_ranks(group);
  });
  EXPECT_THAT(codes, ElementsAre(kRankPassed, kRankPassed, kRankPassed, kRankPassed));
}

// All ranks are on this machine, so that nothing is rounded but the sum.
TEST(OperatorLevels, AreFoundOnceByTheFirstCallThatMayHaveTwo) {
  const auto arrays = arrays_of(3, 10'000);
  run_ranks(3, [&](int64_t rank, const Group& group) {
    const auto workspace = GroupWorkspace::of(group);
    mean_of_operator(arrays[rank], WireFormat::kInt4B32, group, Levels::kOne);
    EXPECT_EQ(workspace->nodes(), nullptr);
    for (const Levels levels : {Levels::kAuto, Levels::kTwo, Levels::kAuto}) {
      const at::Tensor mean = mean_of_operator(arrays[rank], WireFormat::kInt4B32, group, levels);
      EXPECT_TRUE(at::equal(mean, mean_in_rank_order(arrays)));
      EXPECT_EQ(workspace->nodes(), find_nodes(group));
    }
  });
}

TEST(OperatorLevels, AreNotFoundWhileRanksDiffer) {
  run_ranks(3, [&](int64_t rank, const Group& group) {
    for (const Levels of_rank_2 : {Levels::kOne, Levels::kTwo}) {
      EXPECT_EQ(error_message<c10::ValueError>([&] {
                  mean_of_operator(at::ones({9}), WireFormat::kFp32, group, rank == 2 ? of_rank_2 : Levels::kAuto);
                }),
                "quantized_all_reduce: levels differs between ranks: rank 0 has auto, rank 2 has " +
                    std::string(to_string(of_rank_2)));
      EXPECT_EQ(GroupWorkspace::of(group)->nodes(), nullptr);
    }
    EXPECT_TRUE(mean_of_operator(at::ones({9}), WireFormat::kFp32, group).eq(1).all().item<bool>());
    EXPECT_NE(GroupWorkspace::of(group)->nodes(), nullptr);
  });
}

// The ranks exchange messages through the backend, which two groups share here.
TEST(OperatorLevels, AreTheSameInAllGroupsOfABackend) {
  run_ranks(2, [&](int64_t rank, const Group& group) {
    const auto other = c10::make_intrusive<c10d::ProcessGroup>(group->getStore(), static_cast<int>(rank), 2);
    other->setBackend(at::kCPU, c10d::ProcessGroup::BackendType::GLOO, group->getBackend(at::kCPU));
    mean_of_operator(at::ones({9}), WireFormat::kFp32, group);
    EXPECT_TRUE(mean_of_operator(at::ones({9}), WireFormat::kFp32, rank == 0 ? group : other).eq(1).all().item<bool>());
    EXPECT_EQ(GroupWorkspace::of(other)->nodes(), GroupWorkspace::of(group)->nodes());
  });
}

// Rank 1 drops the group that found them. Rank 0 keeps it.
TEST(OperatorLevels, AreKeptAsLongAsTheBackend) {
  std::weak_ptr<node::NodeMemory> of_ranks[2];
  run_ranks(2, [&](int64_t rank, const Group& group) {
    const auto over_backend = [&] {
      auto made = c10::make_intrusive<c10d::ProcessGroup>(group->getStore(), static_cast<int>(rank), 2);
      made->setBackend(at::kCPU, c10d::ProcessGroup::BackendType::GLOO, group->getBackend(at::kCPU));
      return made;
    };
    auto first = over_backend();
    mean_of_operator(at::ones({9}), WireFormat::kFp32, first);
    const auto found = of_ranks[rank] = GroupWorkspace::of(first)->nodes()->memory;
    if (rank == 1) first.reset();
    const auto second = over_backend();
    EXPECT_EQ(GroupWorkspace::of(second)->nodes()->memory, found.lock());
    EXPECT_TRUE(mean_of_operator(at::ones({9}), WireFormat::kFp32, second).eq(1).all().item<bool>());
  });
  run_ranks(1, [](int64_t, const Group& group) { GroupWorkspace::of(group); });
  EXPECT_TRUE(of_ranks[0].expired() && of_ranks[1].expired()) << "the backends have ended";
}

// The text of their layout is longer than the slot. Without memory the average has one level, whatever the layout.
TEST(OperatorLevels, FitInAnAnnouncementForManyUnequalNodes) {
  std::vector<int64_t> node_of_rank;
  for (int64_t node = 0; node < 400; ++node) node_of_rank.insert(node_of_rank.end(), 1 + node % 2, node);
  const auto nodes = std::make_shared<FoundNodes>(FoundNodes{.layout = NodeLayout(node_of_rank)});
  ASSERT_GT(std::ssize(nodes->layout.text()), kAnnouncementBytes);
  run_ranks(2, [&](int64_t rank, const Group& group) {
    GroupWorkspace::of(group)->set_nodes(nodes);
    const at::Tensor x = at::full({9}, 1 + 2 * static_cast<float>(rank));
    EXPECT_TRUE(mean_of_operator(x, WireFormat::kFp32, group).eq(2).all().item<bool>());
  });
}

TEST(OperatorLevels, AreRefusedOnAllRanksWhereTwoAreImpossible) {
  for (const int64_t ranks : {1, 2, 4}) {
    run_ranks(ranks, [&](int64_t, const Group& group) {
      if (ranks > 1) GroupWorkspace::of(group)->set_nodes(FoundNodes::flat(ranks));
      const at::Tensor x = at::ones({40'001});
      EXPECT_EQ(
          error_message<c10::ValueError>([&] { quantized_all_reduce_(x, WireFormat::kFp32, group, Levels::kTwo); }),
          "quantized_all_reduce on rank 0: levels: two is impossible, because every node has one rank");
      for (const Levels levels : {Levels::kAuto, Levels::kOne}) {
        quantized_all_reduce_(x, WireFormat::kFp32, group, levels);
        EXPECT_TRUE(x.eq(1).all().item<bool>());
      }
    });
  }
}

TEST(OperatorOverProcesses, HasOneLevelWhereARankCannotHaveMemory) {
  const auto codes = fork_ranks(3, [](int64_t rank, const Group& group) {
    std::optional<testing::FileSizeLimit> limit;
    if (rank == 0) limit.emplace(1 << 20);
    const at::Tensor x = at::ones({5000});
    EXPECT_THAT(
        error_message<c10::ValueError>([&] { quantized_all_reduce_(x, WireFormat::kFp32, group, Levels::kTwo); }),
        AllOf(HasSubstr("levels: two is impossible, because rank 0: "), HasSubstr("limited to 1048576")));
    quantized_all_reduce_(x, WireFormat::kFp32, group);
    EXPECT_TRUE(x.eq(1).all().item<bool>());
    wait_for_ranks(group);
  });
  EXPECT_THAT(codes, ElementsAre(kRankPassed, kRankPassed, kRankPassed));
}

// Only the node of ranks 2 and 3 has little memory.
TEST(OperatorLevels, AreRefusedOnAllRanksIfOneCannotStageTheTensor) {
  const auto little = node::SharedMemory::create(1 << 20);
  run_ranks(4, [&](int64_t rank, const Group& group) {
    auto nodes = std::make_shared<FoundNodes>(*find_nodes(group, 2));
    if (rank >= 2) {
      nodes->memory =
          std::make_shared<node::NodeMemory>(node::SharedMemory::open(FileDescriptor(::dup(little.descriptor().get()))),
                                             std::vector<int64_t>{2, 3}, rank - 2, std::vector<FileDescriptor>(2));
    }
    GroupWorkspace::of(group)->set_nodes(nodes);
    const at::Tensor x = at::ones({100'000});
    EXPECT_EQ(error_message<c10::ValueError>([&] { quantized_all_reduce_(x, WireFormat::kFp32, group); }),
              "quantized_all_reduce on rank 2: an array of 100000 elements is too large for 2 ranks of a node with "
              "1048576 bytes of shared memory; use levels: one, which needs no shared memory");
    quantized_all_reduce_(x, WireFormat::kFp32, group, Levels::kOne);
    EXPECT_TRUE(x.eq(1).all().item<bool>());
  });
}

// Ranks that make the same call have put their tensors into the node's memory before they notice the difference.
TEST(OperatorLevels, AverageAfterRanksDiffered) {
  const auto arrays = arrays_of(4, 40'001);
  const at::Tensor expected = expected_mean(WireFormat::kInt8B128, arrays, NodeLayout::of_size(4, 2));
  run_ranks(4, [&](int64_t rank, const Group& group) {
    set_node_size(group, 2);
    for (int64_t time = 0; time < 8; ++time) {
      const at::Tensor x = arrays[rank].clone();
      const Levels levels = rank == time % 4 ? Levels::kOne : Levels::kAuto;
      EXPECT_THROW(quantized_all_reduce_(x, WireFormat::kInt8B128, group, levels), c10::ValueError);
      EXPECT_TRUE(at::equal(x, arrays[rank]));
      for (int64_t call = 0; call < time % 3; ++call) {  // Each slot of the memory is the next one.
        EXPECT_TRUE(test::same_bits(mean_of_operator(arrays[rank], WireFormat::kInt8B128, group), expected));
      }
    }
  });
}

// Rank 1 announces the call, and ends before it puts its tensor into the node's memory.
TEST(OperatorOverProcesses, FailsOnTheRanksOfTheNodeIfOneEndsInACall) {
  const auto begin = std::chrono::steady_clock::now();
  constexpr int kEnded = 7;
  const auto codes = fork_ranks(3, [](int64_t rank, const Group& group) {
    const at::Tensor x = at::ones({40'001});
    quantized_all_reduce_(x, WireFormat::kFp32, group);
    if (rank == 1) {
      const Announcement call = announcement_of(x, {WireFormat::kFp32});
      GroupWorkspace::of(group)->run(*engine::Engine::for_group(group), call, nullptr);
      ::_exit(kEnded);
    }
    EXPECT_THAT(error_message<c10::DistBackendError>([&] { quantized_all_reduce_(x, WireFormat::kFp32, group); }),
                HasSubstr("rank " + std::to_string(rank)));
  });
  EXPECT_THAT(codes, ElementsAre(kRankPassed, kEnded, kRankPassed));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, testing::kPatience / 2) << "half of the group's timeout";
}

// Local rank 0 of the first node gets announcements from rank 2, and local rank 1 from rank 3.
TEST(OperatorOverProcesses, FailsOnAllNodesIfARankEndsBeforeItAnnounces) {
  const auto begin = std::chrono::steady_clock::now();
  constexpr int kEnded = 7;
  const auto codes = fork_ranks(4, [](int64_t rank, const Group& group) {
    set_node_size(group, 2);
    const at::Tensor x = at::ones({40'001});
    quantized_all_reduce_(x, WireFormat::kFp32, group);
    if (rank == 2) ::_exit(kEnded);
    EXPECT_THAT(error_message<c10::DistBackendError>([&] { quantized_all_reduce_(x, WireFormat::kFp32, group); }),
                HasSubstr("rank " + std::to_string(rank)));
  });
  EXPECT_THAT(codes, ElementsAre(kRankPassed, kRankPassed, kEnded, kRankPassed));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, testing::kPatience / 2) << "half of the group's timeout";
}

}  // namespace
}  // namespace narrowcast::collectives
