#include "hooks/table/auto_choice.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hooks/row/levels.h"

namespace narrowcast::hooks {
namespace {

using node::NodeLayout;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> candidate_names(const WireOptions& wire, const NodeLayout& layout) {
  std::vector<std::string> names;
  for (const AutoCandidate& candidate : auto_candidates(wire, layout)) names.push_back(candidate.name);
  return names;
}

TEST(AutoCandidates, AreNeverNarrowerThanTheOptionsAllow) {
  const NodeLayout flat = NodeLayout::flat(4);
  EXPECT_THAT(candidate_names({}, flat), ElementsAre("allreduce", "bf16_compress", "int8"));
  EXPECT_THAT(candidate_names({.auto_bits = 7}, flat), ElementsAre("allreduce", "bf16_compress", "int8"));
  EXPECT_THAT(candidate_names({.auto_bits = 6}, flat), ElementsAre("allreduce", "bf16_compress", "int8", "var6"));
  EXPECT_THAT(candidate_names({.auto_bits = 5}, flat),
              ElementsAre("allreduce", "bf16_compress", "int8", "var6", "var5"));
  EXPECT_THAT(candidate_names({.auto_bits = 4}, flat),
              ElementsAre("allreduce", "bf16_compress", "int8", "var6", "var5", "var4"));
}

TEST(AutoCandidates, HaveTwoLevelsWhereRanksShareANode) {
  EXPECT_THAT(candidate_names({}, NodeLayout::of_size(4, 2)),
              ElementsAre("allreduce", "fp32", "bf16_compress", "int8"));
  EXPECT_THAT(candidate_names({}, NodeLayout::of_size(4, 4)), ElementsAre("allreduce", "fp32"))
      << "nothing is rounded on one node";
  EXPECT_THAT(candidate_names({}, NodeLayout::flat(1)), ElementsAre("allreduce"));
}

TEST(CandidateOptions, AreTheHooksOwnWhereItTakesThem) {
  const HookOptions options{nullptr, {.error_feedback = true, .node_size = 2, .auto_bits = 4}};
  EXPECT_EQ(candidate_options("bf16_compress", options).wire, WireOptions{});
  EXPECT_EQ(candidate_options("var4", options).wire, (WireOptions{.error_feedback = true, .node_size = 2}));
}

// The name of the candidate that is chosen if a million elements take `costs` seconds, by candidate.
std::string taken_of(std::vector<double> costs) {
  std::vector<AutoCandidate> candidates = auto_candidates({}, NodeLayout::flat(4));
  for (size_t i = 0; i < candidates.size(); ++i) candidates[i].cost = {0, 1e-6 * costs[i]};
  return candidates[choose_candidate(candidates, 1'000'000)].name;
}

TEST(ChooseCandidate, TakesTheFastest) {
  EXPECT_EQ(taken_of({3, 2, 1}), "int8");
  EXPECT_EQ(taken_of({3, 1, 2}), "bf16_compress");
  EXPECT_EQ(taken_of({1, 2, 3}), "allreduce");
}

TEST(ChooseCandidate, RoundsLessWhereThatCostsNothing) {
  EXPECT_EQ(taken_of({1.5, 1.019, 1}), "bf16_compress");
  EXPECT_EQ(taken_of({1.019, 1.01, 1}), "allreduce");
  EXPECT_EQ(taken_of({1.03, 1.03, 1}), "int8");
}

TEST(ChooseCandidate, TakesTheFasterOfTwoThatRoundAlike) {
  std::vector<AutoCandidate> candidates = auto_candidates({}, NodeLayout::of_size(4, 2));
  for (size_t i = 0; i < candidates.size(); ++i) candidates[i].cost = {1 - 1e-3 * static_cast<double>(i == 1), 0};
  EXPECT_EQ(candidates[choose_candidate(candidates, 100)].name, "fp32");
}

TEST(ChooseCandidate, DependsOnTheSize) {
  std::vector<AutoCandidate> candidates = auto_candidates({}, NodeLayout::flat(4));
  candidates[0].cost = {1e-4, 4e-9};
  candidates[1].cost = {2e-4, 2e-9};
  candidates[2].cost = {4e-4, 1e-9};
  EXPECT_EQ(candidates[choose_candidate(candidates, 1000)].name, "allreduce");
  EXPECT_EQ(candidates[choose_candidate(candidates, 100'000)].name, "bf16_compress");
  EXPECT_EQ(candidates[choose_candidate(candidates, 10'000'000)].name, "int8");
  EXPECT_EQ(
      choice_text(candidates),
      "int8 from 1 MiB, bf16_compress from 256 KiB, allreduce below (25 MiB: allreduce 26.3 ms, bf16_compress 13.3 "
      "ms, int8 7.0 ms)");
}

TEST(CostOnLink, IsPayloadOverTheLinkAndHops) {
  const collectives::LinkCost link{1e-4, 1e-8};
  const ExchangeCost all_reduce = cost_on_link("allreduce", {}, NodeLayout::flat(4), link);
  EXPECT_DOUBLE_EQ(all_reduce.seconds, 6e-4) << "a ring of four";
  EXPECT_NEAR(all_reduce.seconds_per_element, 6e-8, 1e-12);
  const ExchangeCost int8 = cost_on_link("int8", {}, NodeLayout::flat(4), link);
  EXPECT_DOUBLE_EQ(int8.seconds, 2e-4);
  EXPECT_NEAR(int8.seconds_per_element, 1.5e-8 * 8.125 / 8, 1e-12);
  EXPECT_DOUBLE_EQ(cost_on_link("int8", {}, NodeLayout::flat(2), link).seconds, 1e-4);
  EXPECT_EQ(cost_on_link("fp32", {}, NodeLayout::of_size(4, 4), link).seconds_per_element, 0);
}

TEST(NotFasterThanLink, HoldsForLargeBuckets) {
  const ExchangeCost on_link{3e-4, 6e-8};
  const ExchangeCost too_fast = not_faster_than_link({1e-4, 1e-9}, on_link);
  EXPECT_EQ(too_fast.seconds, 1e-4) << "which is measured, of small ones";
  EXPECT_EQ(too_fast.seconds_per_element, 6e-8);
  EXPECT_EQ(not_faster_than_link({1e-4, 7e-8}, on_link).seconds_per_element, 7e-8);
}

// The node's 10 Gbit/s are 5 for each of its two ranks, which send half each. A ring crosses the NIC once.
TEST(CostOnLink, SharesACardAmongItsRanks) {
  const NodeLayout layout = NodeLayout::of_size(4, 2);
  const auto link = with_given_link({}, {.link_gbit = 10, .link_us = 50}, layout);
  EXPECT_NEAR(cost_on_link("fp32", {}, layout, link).seconds_per_element, 4 * 0.8e-9, 1e-12);
  EXPECT_NEAR(cost_on_link("allreduce", {}, layout, link).seconds_per_element, 6 * 0.8e-9, 1e-12);
  EXPECT_EQ(link_text({.between_nodes = link, .within_node = std::nullopt}, layout),
            "10.0 Gbit/s and 50.0 us between nodes");
}

TEST(OnSlowerLink, ChangesTheLinksPartAlone) {
  std::vector<AutoCandidate> candidates = auto_candidates({}, NodeLayout::flat(2));
  candidates[0].cost = {5, 3};
  candidates[0].sent = {4, 1};
  const AutoCandidate slower = on_slower_link(candidates, 3)[0];
  EXPECT_EQ(slower.cost.seconds, 13);
  EXPECT_EQ(slower.cost.seconds_per_element, 5);
  EXPECT_EQ(slower.sent.seconds, 12);
  EXPECT_EQ(slower.sent.seconds_per_element, 3);
}

TEST(LocalCost, IsMeasuredForEveryCandidate) {
  const NodeLayout layout = NodeLayout::of_size(4, 2);
  for (const AutoCandidate& candidate : auto_candidates({.auto_bits = 4}, layout)) {
    EXPECT_GT(local_cost(candidate.name, {}, layout).seconds_per_element, 0) << candidate.name;
  }
}

}  // namespace
}  // namespace narrowcast::hooks
