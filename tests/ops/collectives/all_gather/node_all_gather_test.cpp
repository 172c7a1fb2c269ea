#include "ops/collectives/all_gather/node_all_gather.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/error_message.h"
#include "tests/support/ranks.h"

namespace narrowcast::collectives {
namespace {

using GroupPtr = c10::intrusive_ptr<c10d::ProcessGroup>;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int64_t kCalls = 5;  // More than there are slots.

// Local rank r of a node gives 3 r + 1 bytes; the last rank of a node of several gives none.
int64_t bytes_of(int64_t local_rank, int64_t local_size) {
  return local_size > 1 && local_rank + 1 == local_size ? 0 : 3 * local_rank + 1;
}

std::string text_of(int64_t call, int64_t node, int64_t local_rank, int64_t bytes) {
  return std::string(bytes, static_cast<char>('a' + (5 * call + 3 * node + local_rank) % 26));
}

NodeAllGatherOptions options_of(const std::shared_ptr<const node::FoundNodes>& nodes) {
  NodeAllGatherOptions options{.name = "gather", .nodes = nodes};
  const int64_t local_size = nodes->memory->local_size();
  for (int64_t other = 0; other < local_size; ++other) options.bytes.push_back(bytes_of(other, local_size));
  return options;
}

TEST(NodeAllGather, EachRankTakesWhatTheOthersOfItsNodeGive) {
  for (const auto& [world_size, node_size] : {std::pair<int64_t, int64_t>{2, 2}, {3, 3}, {4, 3}, {5, 2}, {8, 4}}) {
    testing::run_ranks(world_size, [&](int64_t rank, const GroupPtr& group) {
      const auto nodes = node::find_nodes(group, node_size);
      const int64_t node = nodes->layout.node_of(rank);
      const int64_t own = nodes->memory->local_rank();
      const NodeAllGatherOptions options = options_of(nodes);
      const std::vector<int64_t> bytes = options.bytes;
      const auto job = std::make_shared<NodeAllGatherJob>(options);
      const auto engine = engine::Engine::for_group(group);
      for (int64_t call = 0; call < kCalls; ++call) {
        std::vector<std::string> taken(bytes.size());
        job->set_call({.give =
                           [&](std::byte* to) {
                             const std::string text = text_of(call, node, own, bytes[own]);
                             std::memcpy(to, text.data(), text.size());
                           },
                       .take =
                           [&](int64_t local_rank, const std::byte* from) {
                             taken[local_rank].assign(reinterpret_cast<const char*>(from), bytes[local_rank]);
                           }});
        engine->submit(job)->waitAndThrow();
        for (int64_t other = 0; other < std::ssize(bytes); ++other) {
          EXPECT_EQ(taken[other], other == own ? "" : text_of(call, node, other, bytes[other]));
        }
      }
    });
  }
}

// The rank has failed between two exchanges. Its process lives on, and so does its view of the node's memory.
TEST(NodeAllGather, ARankThatHasLeftFailsTheOthersOfItsNode) {
  testing::run_ranks(3, [](int64_t rank, const GroupPtr& group) {
    const auto nodes = node::find_nodes(group, 3);
    if (rank == 1) {
      node::leave_nodes(group);
    } else {
      const auto job = std::make_shared<NodeAllGatherJob>(options_of(nodes));
      job->set_call(
          {.give = [](std::byte* /*to*/) {}, .take = [](int64_t /*local_rank*/, const std::byte* /*from*/) {}});
      const std::string error = testing::error_message<c10::DistBackendError>(
          [&] { engine::Engine::for_group(group)->submit(job)->waitAndThrow(); });
      EXPECT_THAT(error, HasSubstr("rank 1 of this node cancelled an exchange"));
    }
    testing::wait_for_ranks(group);
  });
}

TEST(NodeAllGather, ARankThatCannotGiveFailsOnAllOfItsNode) {
  testing::run_ranks(3, [](int64_t rank, const GroupPtr& group) {
    const auto job = std::make_shared<NodeAllGatherJob>(options_of(node::find_nodes(group, 3)));
    job->set_call({.give = [rank](std::byte* /*to*/) { TORCH_CHECK_VALUE(rank != 1, "nothing to give"); },
                   .take = [](int64_t /*local_rank*/, const std::byte* /*from*/) {}});
    const auto gather = [&] { engine::Engine::for_group(group)->submit(job)->waitAndThrow(); };
    if (rank == 1) {
      EXPECT_EQ(testing::error_message<c10::ValueError>(gather), "nothing to give");
    } else {
      // If rank 1 has given up before this rank begins, the node's memory refuses the exchange of any name.
      EXPECT_THAT(testing::error_message<c10::DistBackendError>(gather),
                  AllOf(StartsWith("rank " + std::to_string(rank) + ": "),
                        AnyOf(HasSubstr("gather"), HasSubstr("rank 1 of this node cancelled an exchange"))));
    }
  });
}

}  // namespace
}  // namespace narrowcast::collectives
