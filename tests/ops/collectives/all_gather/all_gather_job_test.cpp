#include "ops/collectives/all_gather/all_gather_job.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "tests/support/error_message.h"
#include "tests/support/ranks.h"

namespace narrowcast::collectives {
namespace {

using AllGatherGroup = c10::intrusive_ptr<c10d::ProcessGroup>;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int64_t kGathers = 5;  // More than there are slots.

// Rank r gives 3 r + 20 bytes, and rank 1 none. Ranks without a segment give none.
std::vector<int64_t> bytes_of_ranks(const node::NodeLayout& layout) {
  std::vector<int64_t> bytes;
  for (int64_t rank = 0; rank < layout.world_size(); ++rank) {
    bytes.push_back(layout.local_rank_of(rank) < layout.segments() && rank != 1 ? 3 * rank + 20 : 0);
  }
  return bytes;
}

std::string gathered_text(int64_t call, int64_t rank, int64_t bytes) {
  return std::string(bytes, static_cast<char>('a' + (5 * call + rank) % 26));
}

std::shared_ptr<AllGatherJob> make_gather(int64_t rank, const std::shared_ptr<const node::FoundNodes>& nodes) {
  return std::make_shared<AllGatherJob>(
      AllGatherOptions{.name = "gather", .rank = rank, .nodes = nodes, .bytes = bytes_of_ranks(nodes->layout)},
      std::make_shared<MessageMemory>());
}

// Number of ranks, ranks per node.
class AllGatherOf : public ::testing::TestWithParam<std::tuple<int64_t, int64_t>> {};

TEST_P(AllGatherOf, EachRankTakesWhatAllRanksGive) {
  const auto [world_size, node_size] = GetParam();
  testing::run_ranks(
      world_size, [world_size = world_size, node_size = node_size](int64_t rank, const AllGatherGroup& group) {
        const auto nodes = node::find_nodes(group, node_size);
        const std::vector<int64_t> bytes = bytes_of_ranks(nodes->layout);
        const auto job = make_gather(rank, nodes);
        const auto engine = engine::Engine::for_group(group);
        for (int64_t call = 0; call < kGathers; ++call) {
          std::vector<std::string> taken(world_size, "nothing");
          job->set_call({.give =
                             [&](std::byte* to) {
                               const std::string text = gathered_text(call, rank, bytes[rank]);
                               std::memcpy(to, text.data(), text.size());
                             },
                         .take =
                             [&](int64_t from_rank, const std::byte* from) {
                               taken[from_rank].assign(reinterpret_cast<const char*>(from), bytes[from_rank]);
                             }});
          engine->submit(job)->waitAndThrow();
          for (int64_t other = 0; other < world_size; ++other) {
            EXPECT_EQ(taken[other], bytes[other] > 0 ? gathered_text(call, other, bytes[other]) : "nothing") << other;
          }
        }
      });
}

INSTANTIATE_TEST_SUITE_P(Worlds, AllGatherOf,
                         ::testing::Combine(::testing::Values(2, 3, 4, 5, 8), ::testing::Values(1, 2, 3, 8)));

// With two nodes of two ranks, a rank sends its bytes to one other rank; with one level, to three.
TEST(AllGather, CountsWhatARankSends) {
  testing::run_ranks(4, [](int64_t rank, const AllGatherGroup& group) {
    const int64_t own = AllGatherJob::kHeaderBytes + (rank == 1 ? 0 : 3 * rank + 20);
    EXPECT_EQ(make_gather(rank, node::find_nodes(group, 2))->payload_bytes(), own);
    EXPECT_EQ(make_gather(rank, node::FoundNodes::flat(4))->payload_bytes(), 3 * own);
  });
}

TEST(AllGather, ARankThatCannotGiveFailsOnAll) {
  for (const int64_t node_size : {1, 2}) {
    testing::run_ranks(4, [node_size](int64_t rank, const AllGatherGroup& group) {
      const auto job = make_gather(rank, node::find_nodes(group, node_size));
      job->set_call({.give = [rank](std::byte* /*to*/) { TORCH_CHECK_VALUE(rank != 2, "nothing to give"); },
                     .take = [](int64_t /*rank*/, const std::byte* /*from*/) {}});
      const auto gather = [&] { engine::Engine::for_group(group)->submit(job)->waitAndThrow(); };
      if (rank == 2) {
        EXPECT_EQ(testing::error_message<c10::ValueError>(gather), "nothing to give");
      } else {
        EXPECT_THAT(testing::error_message<c10::DistBackendError>(gather),
                    AllOf(StartsWith("rank " + std::to_string(rank) + ": "),
                          AnyOf(HasSubstr("rank 2 could not take part in it"), HasSubstr("cancelled an exchange"))));
      }
    });
  }
}

}  // namespace
}  // namespace narrowcast::collectives
