#include "trainer/ddp/recovery/shared_state.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include <narrowcast/errors.h>
#include "tests/support/ranks.h"

namespace narrowcast::recovery {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::run_ranks;
using ::testing::UnorderedElementsAre;

// A state whose common tensors follow from the point.
RankState state_at(int64_t point, int64_t rank) {
  const auto value = static_cast<double>(point);
  return {.point = point,
          .values = std::to_string(point),
          .common = {{"weight", at::full({3, 5}, value)},
                     {"half", at::full({7}, value, at::kHalf)},
                     {"empty", at::zeros({0, 2})},
                     {"steps", at::full({}, point, at::kLong)},
                     {"mask", at::ones({1}, at::kBool)},
                     {"transposed", at::arange(6, at::kDouble).add(value).view({2, 3}).t()}},
          .own = {{"seconds", at::full({}, 100 * point + rank, at::kLong)}}};
}

using States = std::vector<std::optional<RankState>>;
using Results = std::vector<std::optional<SharedState>>;

// Returns the result of each rank, if rank r has states[r].
Results shared(const States& states) {
  Results results(states.size());
  run_ranks(static_cast<int64_t>(states.size()),
            [&](int64_t rank, const ProcessGroupPtr& group) { results[rank] = share_states(group, states[rank]); });
  return results;
}

void expect_state(const RankState& found, int64_t point, int64_t own_of) {
  const RankState expected = state_at(point, own_of);
  EXPECT_EQ(found.point, point);
  EXPECT_EQ(found.values, expected.values);
  ASSERT_EQ(found.common.size(), expected.common.size());
  for (const auto& [name, tensor] : expected.common) {
    EXPECT_EQ(found.common.at(name).scalar_type(), tensor.scalar_type()) << name;
    EXPECT_TRUE(at::equal(found.common.at(name), tensor)) << name;
  }
  EXPECT_EQ(found.own.at("seconds").item<int64_t>(), 100 * point + own_of);
}

class ShareStatesOfRanks : public ::testing::TestWithParam<int64_t> {};

TEST_P(ShareStatesOfRanks, WithoutAStateThereIsNone) {
  for (const auto& result : shared(States(static_cast<size_t>(GetParam())))) {
    EXPECT_FALSE(result.has_value());
  }
}

TEST_P(ShareStatesOfRanks, ALostRankGetsTheStateFromAllOthers) {
  const int64_t world_size = GetParam();
  for (int64_t lost = 0; lost < world_size && world_size > 1; ++lost) {
    States states;
    for (int64_t rank = 0; rank < world_size; ++rank) {
      states.push_back(rank == lost ? std::nullopt : std::optional(state_at(4, rank)));
    }
    const Results results = shared(states);
    const int64_t first = lost == 0 ? 1 : 0;
    for (int64_t rank = 0; rank < world_size; ++rank) {
      ASSERT_TRUE(results[rank].has_value());
      EXPECT_THAT(results[rank]->lost_ranks, ElementsAre(lost));
      EXPECT_EQ(results[rank]->first_source, first);
      EXPECT_EQ(results[rank]->is_received, rank == lost);
      expect_state(results[rank]->state, 4, rank == lost ? first : rank);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, ShareStatesOfRanks, ::testing::Values(1, 2, 3, 5));

TEST(ShareStates, ARankThatIsBehindReceivesButIsNotLost) {
  const Results results = shared({state_at(4, 0), state_at(5, 1), state_at(5, 2)});
  for (int64_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(results[rank]->is_received, rank == 0);
    EXPECT_THAT(results[rank]->lost_ranks, IsEmpty());
    expect_state(results[rank]->state, 5, rank == 0 ? 1 : rank);
  }
}

// A state of which each rank of a node of two holds a half.
RankState half_at(int64_t point, int64_t rank, std::optional<int64_t> half = {}) {
  RankState state = state_at(point, rank);
  state.held = {
      .numels = {{"moment", 10}},
      .ranges = {half.value_or(rank % 2) == 0 ? pieces::Range{"moment", 0, 6} : pieces::Range{"moment", 6, 10}}};
  return state;
}

// Ranks of nodes of two. Some are lost, some did one step more, and some were in a step.
TEST(ShareStates, TheFurthestPointAtWhichRanksHoldEverythingCounts) {
  const auto torn = [] { return RankState{.why_unusable = "torn"}; };
  struct Case {
    States states;
    std::optional<int64_t> point;
    std::vector<int64_t> lost;
    std::string why;
  };
  const Case cases[] = {
      {{half_at(4, 0), std::nullopt, half_at(4, 2), half_at(4, 3)}, 4, {1}, ""},
      {{half_at(4, 0), std::nullopt, half_at(5, 2), half_at(5, 3)}, 5, {1}, ""},
      {{torn(), std::nullopt, half_at(5, 2), half_at(5, 3)}, 5, {1}, ""},
      {{half_at(5, 0), std::nullopt, half_at(4, 2), half_at(4, 3)}, 4, {1}, ""},
      {{half_at(5, 0), std::nullopt, half_at(4, 2), half_at(4, 3), half_at(5, 4, 1)}, 5, {1}, ""},
      {{std::nullopt, half_at(4, 1), half_at(4, 2), std::nullopt}, 4, {0, 3}, ""},
      {{std::nullopt, half_at(4, 1), std::nullopt, half_at(4, 3)},
       {},
       {},
       "no rank that is left holds the optimizer's "
       "state of moment[0, 6)"},
      {{half_at(4, 0), std::nullopt}, {}, {}, "no rank that is left holds the optimizer's state of moment[6, 10)"},
      {{torn(), std::nullopt, torn(), std::nullopt}, {}, {}, "torn"},
      {{std::nullopt, std::nullopt}, {}, {}, ""},
  };
  for (const Case& value : cases) {
    const auto world_size = static_cast<int64_t>(value.states.size());
    run_ranks(world_size, [&](int64_t rank, const ProcessGroupPtr& group) {
      std::string why;
      const auto shared = share_states(group, value.states[rank], &why);
      EXPECT_EQ(why, value.why);
      ASSERT_EQ(shared.has_value(), value.point.has_value());
      if (!shared) return;
      EXPECT_EQ(shared->lost_ranks, value.lost);
      EXPECT_EQ(shared->state.point, *value.point);
      const auto& own = value.states[rank];
      EXPECT_EQ(shared->is_received, !own || !own->why_unusable.empty() || own->point != *value.point);
      expect_state(shared->state, *value.point, shared->is_received ? shared->first_source : rank);
    });
  }
}

// Ranks 0 and 1 have not heard whether the others have done step 5, and can continue from before it and after it.
TEST(ShareStates, ARankMayGoOnFromSeveralPoints) {
  struct Case {
    std::vector<std::vector<RankState>> states;
    std::optional<int64_t> point;
  };
  const std::vector<RankState> first = {half_at(4, 0), half_at(5, 0)};
  const std::vector<RankState> second = {half_at(4, 1), half_at(5, 1)};
  const Case cases[] = {{{first, second, {}}, 5},
                        {{first, {}, {half_at(4, 3)}}, 4},
                        {{first, {}, {half_at(5, 3)}}, 5},
                        {{{half_at(4, 0)}, second, {}}, 4},
                        {{first, {}, {RankState{.why_unusable = "torn"}}}, {}}};
  for (const Case& value : cases) {
    run_ranks(3, [&](int64_t rank, const ProcessGroupPtr& group) {
      const auto shared = share_states(group, value.states[rank]);
      ASSERT_EQ(shared.has_value(), value.point.has_value());
      if (!shared) return;
      EXPECT_EQ(shared->state.point, *value.point);
      const bool has_point =
          std::ranges::find(value.states[rank], *value.point, &RankState::point) != value.states[rank].end();
      EXPECT_EQ(shared->is_received, !has_point);
      EXPECT_EQ(std::ranges::count(shared->lost_ranks, rank), value.states[rank].empty() ? 1 : 0);
      EXPECT_EQ(shared->state.values, std::to_string(*value.point));
      EXPECT_TRUE(at::equal(shared->state.common.at("weight"), at::full({3, 5}, static_cast<double>(*value.point))));
    });
  }
}

// Large tensors come from all sources: a source that lacks one which only the second source sends fails.
TEST(ShareStates, ASourceWhoseTensorDiffersIsAnErrorThatNamesIt) {
  RankState other = state_at(4, 1);
  for (auto& [name, tensor] : other.common) tensor = at::zeros({11});
  try {
    shared({state_at(4, 0), other, std::nullopt});
    ADD_FAILURE() << "no error";
  } catch (const CorruptInputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("the first source announced 'common."));
  }
}

}  // namespace
}  // namespace narrowcast::recovery
