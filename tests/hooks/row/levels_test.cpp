#include "hooks/row/levels.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include <narrowcast/hooks.h>
#include "ops/comm/connections/group/connections.h"
#include "ops/comm/engine/engine.h"
#include "tests/support/error_message.h"
#include "tests/support/ranks.h"

namespace narrowcast::hooks {
namespace {

using node::NodeLayout;
using testing::run_ranks;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

using GroupBackend = c10d::ProcessGroup::BackendType;

TEST(FindHookNodes, FindsRanksThatShareANodeUnlessToldOtherwise) {
  run_ranks(4, [](int64_t, const Group& group) {
    EXPECT_EQ(find_hook_nodes({group})->layout, NodeLayout::of_size(4, 4));
    EXPECT_EQ(find_hook_nodes({group, {.node_size = 2}})->layout, NodeLayout::of_size(4, 2));
    EXPECT_EQ(find_hook_nodes({group, {.levels = Levels::kOne}})->layout, NodeLayout::flat(4));
  });
}

TEST(FindHookNodes, OpensTheConnectionsThatTheOptionsGive) {
  run_ranks(2, [](int64_t, const Group& group) {
    const auto has_own = [&] { return engine::Engine::for_group(group)->carrier().backend != nullptr; };
    find_hook_nodes({group, {.connections = 4}});
    EXPECT_FALSE(has_own()) << "the ranks share a node";
    find_hook_nodes({group, {.node_size = 1, .connections = 4}});
    EXPECT_TRUE(has_own());
    find_hook_nodes({group, {.node_size = 1}});
    EXPECT_TRUE(has_own()) << "kept without a value";
    find_hook_nodes({group, {.levels = Levels::kOne, .connections = 1}});
    EXPECT_FALSE(has_own());
    find_hook_nodes({group, {.node_size = 1, .connections = kAutoConnections}});
    EXPECT_THAT(connections::connections_text(group), ::testing::HasSubstr(" (auto: "));
  });
}

TEST(NodesText, SaysWhyRanksOfANodeAreNodesByThemselves) {
  EXPECT_EQ(nodes_text({.layout = NodeLayout::of_size(4, 2)}), "2 x 2");
  EXPECT_EQ(nodes_text({.layout = NodeLayout::flat(2), .why_flat = "rank 0: mmap: Cannot allocate memory"}),
            "2 x 1 (rank 0: mmap: Cannot allocate memory)");
}

// Otherwise some ranks would search for nodes, and others not.
TEST(FindHookNodes, RefusesOnAllRanksWhatOneWasToldOtherwise) {
  struct Told {
    WireOptions usual;
    WireOptions of_rank_2;
    const char* complaint;
  };
  const Told kTold[] = {
      {{}, {.node_size = 2}, "node_size differs between ranks: rank 0 has none, rank 2 has 2"},
      {{}, {.node_size = 1}, "node_size differs between ranks: rank 0 has none, rank 2 has 1"},
      {{.node_size = 3}, {.node_size = 2}, "node_size differs between ranks: rank 0 has 3, rank 2 has 2"},
      {{.levels = Levels::kOne}, {}, "levels differs between ranks: rank 0 has one, rank 2 has auto"},
      {{}, {.levels = Levels::kTwo}, "levels differs between ranks: rank 0 has auto, rank 2 has two"},
      {{.link_gbit = 1, .link_us = 50}, {}, "link_gbit differs between ranks: rank 0 has 1, rank 2 has none"},
      {{.connections = 4}, {}, "connections differs between ranks: rank 0 has 4, rank 2 has none"},
      {{.connections = 4}, {.connections = 2}, "connections differs between ranks: rank 0 has 4, rank 2 has 2"},
      {{.link_us = 50}, {.link_us = 50.5}, "link_us differs between ranks: rank 0 has 50, rank 2 has 50.5"},
      {{.link_us = 50},
       {.link_us = 50.0000001},
       "link_us differs between ranks: rank 0 has 50, rank 2 has 50.0000001"}};
  run_ranks(3, [&](int64_t rank, const Group& group) {
    for (const Told& told : kTold) {
      const HookOptions options{group, rank == 2 ? told.of_rank_2 : told.usual};
      const std::string complaint = std::string("comparing the levels of hooks: ") + told.complaint;
      EXPECT_EQ(testing::error_message<c10::ValueError>([&] { find_hook_nodes(options); }), complaint);
      for (const char* const hook : {"int8", "auto"}) {
        EXPECT_EQ(testing::error_message<c10::ValueError>([&] { create_comm_hook(hook, options); }),
                  std::string("create_comm_hook: ") + told.complaint);
      }
    }
    EXPECT_EQ(find_hook_nodes({group})->layout, NodeLayout::of_size(3, 3)) << "the group is as usable as before";
  });
}

TEST(FindHookNodes, NamesWhatItComparesWhenAPeerIsSilent) {
  run_ranks(2,
            [](int64_t rank, const Group& group) {
              if (rank == 1) return;
              EXPECT_THAT(testing::error_message<c10::DistBackendError>([&] { find_hook_nodes({group}); }),
                          ::testing::StartsWith("rank 0: comparing the levels of hooks failed: "));
            },
            {.timeout = std::chrono::milliseconds(500)});
}

// The group has Gloo's backend for CUDA, which does not run: nothing is sent.
TEST(FindHookNodes, IsFlatWhereGpusAreNotNcclsOrRanksCannotBeFound) {
  run_ranks(2, [](int64_t rank, const Group& group) {
    const auto only_gpus = c10::make_intrusive<c10d::ProcessGroup>(group->getStore(), static_cast<int>(rank), 2);
    only_gpus->setBackend(at::kCUDA, GroupBackend::GLOO, group->getBackend(at::kCPU));
    const auto both = c10::make_intrusive<c10d::ProcessGroup>(group->getStore(), static_cast<int>(rank), 2);
    for (const auto type : {at::kCPU, at::kCUDA})
      both->setBackend(type, GroupBackend::GLOO, group->getBackend(at::kCPU));
    const auto expect_flat = [](const Group& other, const char* why) {
      EXPECT_EQ(find_hook_nodes({other})->layout, NodeLayout::flat(2));
      EXPECT_THAT(testing::error_message<c10::ValueError>([&] {
                    find_hook_nodes({other, {.levels = Levels::kTwo}});
                  }),
                  ::testing::HasSubstr(why));
      EXPECT_THROW(find_hook_nodes({other, {.node_size = 2}}), c10::ValueError);
    };
    expect_flat(only_gpus, "levels: two is impossible, because the process group has no backend for CPU tensors");
    expect_flat(both, "levels: two is impossible, because the process group does not use NCCL for GPU tensors");
    EXPECT_EQ(find_hook_nodes({.process_group = both, .device = at::kCPU})->layout, NodeLayout::of_size(2, 2));
  });
}

// Gloo, as torch.distributed makes it, is a group for CPU and CUDA tensors: only the options know where gradients are.
TEST(Device, OfGradientsDecidesForAGroupThatMovesBoth) {
  run_ranks(2, [](int64_t rank, const Group& group) {
    const auto both = c10::make_intrusive<c10d::ProcessGroup>(group->getStore(), static_cast<int>(rank), 2);
    for (const auto type : {at::kCPU, at::kCUDA})
      both->setBackend(type, GroupBackend::GLOO, group->getBackend(at::kCPU));
    const HookOptions on_cpu{.process_group = both, .device = at::kCPU};
    const HookOptions on_gpus{.process_group = both, .device = at::kCUDA};
    EXPECT_EQ(create_comm_hook("int8", on_cpu)->nodes(), "1 x 2");
    EXPECT_EQ(create_comm_hook("int8", on_gpus)->nodes(), "2 x 1");
    EXPECT_THAT(create_comm_hook("auto", on_cpu)->decision(), ::testing::HasSubstr("within a node"));
    EXPECT_THAT(create_comm_hook("auto", on_gpus)->decision(), ::testing::HasSubstr("allreduce"));
    EXPECT_EQ(testing::error_message<c10::ValueError>([&] { create_comm_hook("int8", rank == 0 ? on_cpu : on_gpus); }),
              "create_comm_hook: device differs between ranks: rank 0 has cpu, rank 1 has cuda");
    EXPECT_EQ(testing::error_message<c10::ValueError>(
                  [&] { create_comm_hook("int8", {.process_group = group, .device = at::kCUDA}); }),
              "create_comm_hook on rank 0: device: the process group does not move tensors on cuda");
  });
}

TEST(FindHookLink, TakesWhatIsGivenAndSendsNothing) {
  run_ranks(4, [](int64_t rank, const Group& group) {
    if (rank != 0) return;  // Rank 0 must not wait for other ranks.
    const HookOptions options{group, {.link_gbit = 5, .link_us = 20}};
    const auto link = find_hook_link(options, NodeLayout::of_size(4, 2));
    EXPECT_DOUBLE_EQ(link.between_nodes->seconds_per_byte, 2 * 1.6e-9) << "two ranks share the card";
    EXPECT_DOUBLE_EQ(link.between_nodes->seconds_per_hop, 20e-6);
    EXPECT_FALSE(link.within_node.has_value());
    EXPECT_FALSE(find_hook_link(options, NodeLayout::of_size(4, 4)).between_nodes.has_value());
  });
}

// The group has Gloo's backend for CUDA, which does not run: nothing is sent.
TEST(FindHookLink, TakesGpusNetworkForAFastOne) {
  run_ranks(2, [](int64_t rank, const Group& group) {
    const auto with_gpus = c10::make_intrusive<c10d::ProcessGroup>(group->getStore(), static_cast<int>(rank), 2);
    with_gpus->setBackend(at::kCUDA, GroupBackend::GLOO, group->getBackend(at::kCPU));
    const auto link = find_hook_link({with_gpus, {.link_us = 7}}, NodeLayout::flat(2)).between_nodes;
    EXPECT_DOUBLE_EQ(link->gbit(), 400);
    EXPECT_DOUBLE_EQ(link->seconds_per_hop, 7e-6);
  });
}

TEST(FindHookLink, MeasuresWhatIsNotGiven) {
  run_ranks(2, [](int64_t, const Group& group) {
    const NodeLayout layout = NodeLayout::flat(2);
    const auto measured = find_hook_link({group}, layout).between_nodes;
    const auto partly = find_hook_link({group, {.link_us = 20}}, layout).between_nodes;
    EXPECT_EQ(partly->seconds_per_byte, measured->seconds_per_byte);
    EXPECT_DOUBLE_EQ(partly->seconds_per_hop, 20e-6);
  });
}

}  // namespace
}  // namespace narrowcast::hooks
