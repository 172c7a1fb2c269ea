#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <optional>
#include <ostream>
#include <set>
#include <utility>
#include <vector>

#include <narrowcast/errors.h>
#include "tests/support/error_message.h"
#include "tests/support/ranks.h"
#include "tests/trainer/ddp/shards/shards_of_state.h"
#include "trainer/ddp/shards/pieces.h"

namespace narrowcast::pieces {
namespace {

using ::testing::HasSubstr;
using testing::run_ranks;

void expect_pieces(const std::vector<Piece>& found, const std::vector<Range>& wanted) {
  ASSERT_EQ(found.size(), wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_EQ(found[i].range, wanted[i]);
    const bool has_state = wanted[i].name != "p1";
    EXPECT_EQ(found[i].step, has_state ? std::optional<int64_t>(7) : std::nullopt);
    ASSERT_EQ(found[i].tensors.size(), has_state ? 2 : 0);
    if (!has_state) continue;
    EXPECT_TRUE(at::equal(found[i].tensors.at("exp_avg"), elements_of(wanted[i], 0))) << describe(wanted[i]);
    EXPECT_TRUE(at::equal(found[i].tensors.at("exp_avg_sq"), elements_of(wanted[i], 1))) << describe(wanted[i]);
  }
}

// Each node holds all shards. Nodes are given by their numbers of ranks.
struct Move {
  std::vector<int64_t> before;  // nodes
  std::set<int64_t> lost;       // ranks; new processes take their places
  std::vector<int64_t> after;   // nodes; as many ranks, or the first ones
};

void PrintTo(const Move& move, std::ostream* out) {
  *out << ::testing::PrintToString(move.before) << " to " << ::testing::PrintToString(move.after) << " without "
       << ::testing::PrintToString(move.lost);
}

// The number of shards of the rank's node, and which is its own.
std::pair<int64_t, int64_t> place_in(const std::vector<int64_t>& nodes, int64_t rank) {
  for (const int64_t ranks : nodes) {
    if (rank < ranks) return {ranks, rank};
    rank -= ranks;
  }
  return {0, 0};
}

class MovesPieces : public ::testing::TestWithParam<Move> {};

TEST_P(MovesPieces, ToTheRanksThatWantThem) {
  const Move& move = GetParam();
  const int64_t world_size = std::accumulate(move.after.begin(), move.after.end(), int64_t{0});
  run_ranks(world_size, [&](int64_t rank, const ProcessGroupPtr& group) {
    const auto [count_before, before] = place_in(move.before, rank);
    const auto [count_after, after] = place_in(move.after, rank);
    const HeldPieces held =
        move.lost.contains(rank) || count_before == 0 ? HeldPieces() : held_pieces(count_before, before);
    const std::vector<Range> wanted = ranges_of(count_after, after);
    const std::vector<Piece> found = move_pieces(group, held.pieces, wanted);
    expect_pieces(found, wanted);
    for (size_t i = 0; i < found.size() && i < held.pieces.size(); ++i) {
      if (held.pieces[i].range == wanted[i] && wanted[i].name != "p1") {
        EXPECT_TRUE(found[i].tensors.at("exp_avg").is_same(held.pieces[i].tensors.at("exp_avg"))) << "no copy";
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    Nodes, MovesPieces,
    ::testing::Values(Move{{1, 1}, {0}, {1, 1}}, Move{{2, 1}, {2}, {2, 1}}, Move{{2, 1}, {0, 1}, {2, 1}},
                      Move{{2, 1}, {}, {2}}, Move{{2, 2}, {3}, {2, 2}}, Move{{2, 2}, {0, 1}, {2, 2}},
                      Move{{2, 2}, {0, 3}, {2, 2}}, Move{{3, 1}, {0, 1, 2}, {3, 1}}, Move{{3, 1}, {3}, {3, 1}},
                      Move{{3, 1}, {}, {2, 2}}, Move{{2, 1, 1}, {0}, {2, 1, 1}}, Move{{2, 2}, {}, {2, 2, 1}},
                      Move{{2, 3}, {0, 4}, {2, 3}}, Move{{2}, {}, {2, 2}}, Move{{2, 1}, {}, {1, 1, 1}}));

TEST(MovePieces, WhatNoRankHoldsIsAnErrorOnAllRanks) {
  run_ranks(3, [](int64_t rank, const ProcessGroupPtr& group) {
    const HeldPieces held = rank == 0 ? held_pieces(2, 0) : HeldPieces();
    EXPECT_THAT(testing::error_message<CorruptInputError>([&] { move_pieces(group, held.pieces, ranges_of(1, 0)); }),
                HasSubstr("no rank holds p3["));
  });
}

TEST(MovePieces, PartsOfDifferentStepsAreAnErrorOnAllRanks) {
  run_ranks(2, [](int64_t rank, const ProcessGroupPtr& group) {
    HeldPieces held = held_pieces(2, rank);
    for (Piece& piece : held.pieces) piece.step = piece.step ? std::optional(7 + rank) : std::nullopt;
    EXPECT_THAT(testing::error_message<CorruptInputError>([&] { move_pieces(group, held.pieces, ranges_of(1, 0)); }),
                HasSubstr("on rank 1 has 2 tensors after step 8, but p3["));
  });
}

}  // namespace
}  // namespace narrowcast::pieces
