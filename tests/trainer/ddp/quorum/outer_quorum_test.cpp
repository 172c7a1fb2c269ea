#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include <narrowcast/outer_optimizer.h>
#include "tests/support/error_message.h"
#include "tests/support/ranks.h"
#include "tests/trainer/ddp/quorum/quorum_fixtures.h"

namespace narrowcast::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kSyncEvery = 3;

std::vector<int64_t> up_to(int64_t count) {
  std::vector<int64_t> numbers(static_cast<size_t>(count));
  std::iota(numbers.begin(), numbers.end(), int64_t{0});
  return numbers;
}

struct Scenario {
  OuterOptions options;
  std::vector<int64_t> groups;  // of each rank
  int64_t rounds = 8;
  int64_t late_group = 0;  // It stands still before step `late_step` until all others have ended `until` rounds.
  int64_t late_step = 5;
  int64_t until = 5;
};

// The view of one rank in the end.
struct SeenByRank {
  std::vector<OuterOptimizer::Round> rounds;
  std::map<int64_t, at::Tensor> references;
  at::Tensor parameter;
  at::Tensor reference;
  int64_t taken = 0;
  int64_t steps = 0;
};

std::vector<SeenByRank> run(const Scenario& scenario) {
  const auto world_size = static_cast<int64_t>(scenario.groups.size());
  std::vector<SeenByRank> seen(scenario.groups.size());
  RankProgress progress(world_size);
  run_ranks(world_size, [&](int64_t rank, const auto& group) {
    const int64_t own = scenario.groups[rank];
    QuorumRank own_rank(own, group, scenario.options, scenario.groups);
    while (own_rank.outer->steps() < scenario.rounds * kSyncEvery) {
      if (own == scenario.late_group && own_rank.taken + 1 == scenario.late_step) {
        progress.wait_until([&](const std::vector<int64_t>& all) {
          for (size_t other = 0; other < all.size(); ++other) {
            if (scenario.groups[other] != own && all[other] < scenario.until) return false;
          }
          return true;
        });
      }
      own_rank.step();
      progress.set(rank, std::ssize(own_rank.rounds));
    }
    own_rank.finish();
    EXPECT_TRUE(own_rank.outer->replicas_are_equal());
    seen[rank] = {
        own_rank.rounds, own_rank.references,    own_rank.parameter.detach().clone(), own_rank.outer->reference(),
        own_rank.taken,  own_rank.outer->steps()};
  });
  return seen;
}

void expect_same_rounds(const std::vector<SeenByRank>& seen) {
  for (const SeenByRank& each : seen) {
    EXPECT_EQ(each.steps, seen[0].steps);
    EXPECT_TRUE(at::equal(each.reference, seen[0].reference));
    EXPECT_TRUE(at::equal(each.parameter, seen[0].parameter)) << "finish";
    ASSERT_EQ(each.rounds.size(), seen[0].rounds.size());
    for (size_t i = 0; i < each.rounds.size(); ++i) {
      EXPECT_EQ(each.rounds[i].steps, seen[0].rounds[i].steps);
      EXPECT_EQ(each.rounds[i].groups, seen[0].rounds[i].groups);
      EXPECT_EQ(each.rounds[i].notes, seen[0].rounds[i].notes);
    }
    for (const auto& [round, reference] : each.references) {
      if (const auto same = seen[0].references.find(round); same != seen[0].references.end()) {
        EXPECT_TRUE(at::equal(reference, same->second)) << "after round " << round;
      }
    }
  }
}

// Every step that a rank has taken is in one message, and every message in one round.
void expect_nothing_lost(const std::vector<SeenByRank>& seen, const std::vector<int64_t>& groups) {
  for (size_t rank = 0; rank < seen.size(); ++rank) {
    double steps = 0;
    for (const auto& round : seen[rank].rounds) {
      for (size_t i = 0; i < round.groups.size(); ++i) {
        if (round.groups[i] == groups[rank]) steps += round.notes[i][0];
      }
    }
    EXPECT_EQ(steps, seen[rank].taken) << "rank " << rank;
  }
}

void expect_simulated(const std::vector<SeenByRank>& seen, const Scenario& scenario, double tolerance) {
  const int64_t count = *std::ranges::max_element(scenario.groups) + 1;
  std::vector<int64_t> sizes;
  for (int64_t group = 0; group < count; ++group) sizes.push_back(std::ranges::count(scenario.groups, group));
  QuorumSimulation simulation(scenario.options, up_to(count), sizes);
  for (size_t i = 0; i < seen[0].rounds.size(); ++i) {
    simulation.take(seen[0].rounds[i]);
    for (const SeenByRank& each : seen) {
      if (const auto found = each.references.find(static_cast<int64_t>(i) + 1); found != each.references.end()) {
        EXPECT_LE((found->second - simulation.reference).abs().max().item<double>(), tolerance) << "round " << i;
      }
    }
  }
}

// Rounds without the late group.
int64_t rounds_without(const std::vector<SeenByRank>& seen, int64_t group) {
  return std::ranges::count_if(
      seen[0].rounds, [&](const auto& round) { return std::ranges::find(round.groups, group) == round.groups.end(); });
}

class OuterQuorumOfWorld : public ::testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(Quorum, OuterQuorumOfWorld, ::testing::Values(2, 3, 4, 5));

TEST_P(OuterQuorumOfWorld, ALateRankMissesRoundsAndLosesNothing) {
  const int64_t world_size = GetParam();
  for (const OuterOptions& options : {quorum_options(kSyncEvery, world_size - 1),
                                      quorum_options(kSyncEvery, world_size - 1).optimizer(OuterKind::kNesterov),
                                      quorum_options(kSyncEvery, world_size - 1).learning_rate(0.5).momentum(0.8)}) {
    const Scenario scenario{.options = options, .groups = up_to(world_size), .late_group = world_size - 1};
    const std::vector<SeenByRank> seen = run(scenario);
    expect_same_rounds(seen);
    expect_nothing_lost(seen, scenario.groups);
    expect_simulated(seen, scenario, 1e-4);
    EXPECT_GE(rounds_without(seen, scenario.late_group), 3);
    EXPECT_EQ(seen[0].steps, scenario.rounds * kSyncEvery);
  }
}

TEST_P(OuterQuorumOfWorld, LossyFormatsWithErrorFeedback) {
  const int64_t world_size = GetParam();
  for (const WireFormat format : {WireFormat::kInt8B128, WireFormat::kTop2P15}) {
    const Scenario scenario{
        .options = quorum_options(kSyncEvery, world_size - 1, format), .groups = up_to(world_size), .late_group = 0};
    const std::vector<SeenByRank> seen = run(scenario);
    expect_same_rounds(seen);
    expect_nothing_lost(seen, scenario.groups);
    // Differences that differ in the last bits may round to the next code.
    if (format == WireFormat::kInt8B128) expect_simulated(seen, scenario, 0.5);
  }
}

TEST(OuterQuorum, GroupsOfTwoRanksMoveTogether) {
  for (const std::vector<int64_t>& groups :
       std::vector<std::vector<int64_t>>{{0, 0, 1, 1}, {0, 0, 1, 2}, {0, 1, 1, 0}}) {
    const int64_t count = *std::ranges::max_element(groups) + 1;
    const Scenario scenario{.options = quorum_options(kSyncEvery, count - 1).optimizer(OuterKind::kNesterov),
                            .groups = groups,
                            .late_group = 1};
    const std::vector<SeenByRank> seen = run(scenario);
    expect_same_rounds(seen);
    expect_nothing_lost(seen, groups);
    expect_simulated(seen, scenario, 1e-4);
    EXPECT_GE(rounds_without(seen, scenario.late_group), 3);
  }
}

// Rank 1 takes no part in the third round, so that rank 0 needs the message of rank 2, which was late for the others.
TEST(OuterQuorum, AGroupThatWasLateIsInTheNextRound) {
  RankProgress progress(3);
  run_ranks(3, [&](int64_t rank, const auto& group) {
    QuorumRank own(rank, group, quorum_options(kSyncEvery, 2));
    const auto take_steps = [&](int64_t rounds) {
      for (int64_t step = 0; step < rounds * kSyncEvery; ++step) own.step();
      progress.set(rank, std::ssize(own.rounds));
    };
    if (rank == 2) {
      progress.wait_for_others(rank, 2);
      take_steps(1);
      EXPECT_GE(std::ssize(own.rounds), 1);  // The messages of the second round may still be on their way.
    } else {
      take_steps(2);
    }
    if (rank == 0) {
      progress.wait_until([](const auto& rounds) { return rounds[2] >= 1; });
      take_steps(1);
      EXPECT_THAT(own.rounds.at(2).groups, ElementsAre(0, 2));
    }
    progress.wait_until([](const auto& rounds) { return rounds[0] == 3; });
    own.finish();
    EXPECT_TRUE(same_on_all_ranks(group, {own.parameter}));
  });
}

// A late rank takes 16 rounds in a step at most: if the others end rounds faster than it receives them, it still sends.
TEST(OuterQuorum, ALateGroupTakesAFewRoundsPerStep) {
  constexpr int64_t kRounds = 40;
  RankProgress progress(3);
  run_ranks(3, [&](int64_t rank, const auto& group) {
    QuorumRank own(rank, group, quorum_options(kSyncEvery, 2));
    if (rank == 2) progress.wait_for_others(rank, kRounds);
    while (own.outer->steps() < kRounds * kSyncEvery) {
      const size_t before = own.rounds.size();
      own.step();
      EXPECT_LE(own.rounds.size() - before, 16);
      progress.set(rank, std::ssize(own.rounds));
    }
    own.finish();
    EXPECT_TRUE(same_on_all_ranks(group, {own.parameter}));
  });
}

// All groups are there, whoever comes first.
TEST(OuterQuorum, OnTimeTheOrderOfArrivalChangesNothing) {
  constexpr int64_t kWorld = 3;
  constexpr int64_t kRounds = 4;
  std::vector<at::Tensor> references;
  for (const std::vector<int64_t>& order : std::vector<std::vector<int64_t>>{{0, 1, 2}, {2, 1, 0}, {1, 2, 0}}) {
    RankProgress sent(kWorld);
    run_ranks(kWorld, [&](int64_t rank, const auto& group) {
      const auto options = quorum_options(kSyncEvery, 2, WireFormat::kInt8B128).grace_seconds(400);
      QuorumRank own(rank, group, options);
      const auto place = std::ranges::find(order, rank) - order.begin();
      int64_t messages = 0;
      own.before_send = [&] {
        ++messages;
        if (place > 0) sent.wait_until([&](const auto& all) { return all[order[place - 1]] >= messages; });
        sent.set(rank, messages);
      };
      while (own.outer->steps() < kRounds * kSyncEvery) {
        if (own.step()) {
          EXPECT_TRUE(own.outer->replicas_are_equal());
          EXPECT_TRUE(at::equal(own.parameter.detach(), own.outer->reference()));
        }
      }
      own.finish();
      EXPECT_EQ(own.taken, kRounds * kSyncEvery);
      for (const auto& round : own.rounds) EXPECT_THAT(round.groups, ElementsAre(0, 1, 2));
      EXPECT_EQ(own.outer->payload_bytes_sent(),
                kRounds * (kWorld - 1) * (128 + encoded_size(QuorumRank::kNumel, WireFormat::kInt8B128)));
      if (rank == 0) references.push_back(own.outer->reference().clone());
      // Some differences round to the next code, but most get the bits of error feedback, and not those without it.
      hooks::WireOptions wire = options.wire();
      QuorumSimulation with_feedback(options, up_to(kWorld));
      wire.error_feedback = false;
      QuorumSimulation without_feedback(OuterOptions(options).wire(wire), up_to(kWorld));
      for (const auto& round : own.rounds) {
        with_feedback.take(round);
        without_feedback.take(round);
      }
      const auto distance = [&](const QuorumSimulation& simulation) {
        return (own.outer->reference() - simulation.reference).norm().template item<double>();
      };
      EXPECT_GT(distance(without_feedback), 0.01);
      EXPECT_LT(distance(with_feedback), 0.2 * distance(without_feedback));
    });
  }
  EXPECT_TRUE(at::equal(references.at(0), references.at(1)));
  EXPECT_TRUE(at::equal(references.at(0), references.at(2)));
}

// A group that was late for the last round gets no grace: rank 2 has it once, and not before each of its rounds.
TEST(OuterQuorum, OnlyGroupsOfTheLastRoundGetGrace) {
  constexpr double kGrace = 2;
  constexpr int64_t kRounds = 12;
  RankProgress progress(3);
  run_ranks(3, [&](int64_t rank, const auto& group) {
    QuorumRank own(rank, group, quorum_options(1, 2).grace_seconds(kGrace));
    wait_for_ranks(group);
    if (rank == 2) progress.wait_for_others(2, kRounds);
    const auto began = std::chrono::steady_clock::now();
    while (own.outer->steps() < kRounds) {
      own.step();
      progress.set(rank, std::ssize(own.rounds));
    }
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - began;
    if (rank != 2) {
      EXPECT_GE(seconds.count(), 0.9 * kGrace);
      EXPECT_LE(seconds.count(), 0.5 * kRounds * kGrace);
    }
    own.finish();
  });
}

TEST(OuterQuorum, ARankOfOneWorldIsAlone) {
  run_ranks(1, [](int64_t rank, const auto& group) {
    QuorumRank own(rank, group, quorum_options(kSyncEvery, 1));
    while (own.outer->steps() < 4 * kSyncEvery) own.step();
    own.finish();
    EXPECT_EQ(std::ssize(own.rounds), 4);
    EXPECT_EQ(own.outer->payload_bytes_sent(), 0);
  });
}

TEST(OuterQuorum, AWarmUpComesFirst) {
  run_ranks(2, [](int64_t rank, const auto& group) {
    QuorumRank own(0, group, quorum_options(kSyncEvery, 1).warmup_steps(2).first_exchange(1));
    for (int64_t step = 1; step <= 2; ++step) {
      EXPECT_TRUE(own.outer->is_warming_up());
      EXPECT_FALSE(own.step());
      EXPECT_TRUE(own.outer->steps_are_common());
    }
    std::vector<int64_t> ends;
    while (own.outer->steps() < 3 + 2 * kSyncEvery) {
      if (own.step()) ends.push_back(own.outer->steps());
    }
    own.finish();
    EXPECT_EQ(own.rounds.front().steps, 3) << rank;
    EXPECT_EQ(own.outer->steps(), 3 + 2 * kSyncEvery);
  });
}

// A mean that is not finite is lost on all ranks, also on a late one, whose own difference stays.
TEST(OuterQuorum, ALostMeanChangesNothing) {
  RankProgress progress(3);
  run_ranks(3, [&](int64_t rank, const auto& group) {
    QuorumRank own(rank, group, quorum_options(kSyncEvery, 2));
    while (own.outer->steps() < 4 * kSyncEvery) {
      if (rank == 2 && own.taken == 1) progress.wait_for_others(2, 2);
      if (rank == 1 && own.taken == 1) own.parameter.detach()[7] = std::numeric_limits<float>::infinity();
      if (own.step() && rank != 2 && std::ssize(own.rounds) == 1) {
        EXPECT_TRUE(at::equal(own.parameter.detach(), at::zeros({QuorumRank::kNumel})));
      }
      progress.set(rank, std::ssize(own.rounds));
    }
    own.finish();
    EXPECT_EQ(own.outer->lost_exchanges(), 1);
    EXPECT_TRUE(own.parameter.isfinite().all().template item<bool>());
    EXPECT_TRUE(same_on_all_ranks(group, {own.parameter}));
  });
}

TEST(OuterQuorum, WrongArgumentsAreRefusedOnAllRanks) {
  run_ranks(3, [](int64_t rank, const auto& group) {
    const auto refused = [&](const OuterOptions& options, const std::vector<int64_t>& groups = {}) {
      return error_message<c10::ValueError>([&] { QuorumRank(rank, group, options, groups); });
    };
    const OuterOptions right = quorum_options(4, 2);
    EXPECT_THAT(refused(quorum_options(4, 0)), HasSubstr("outer_quorum: must be at least 1, but is 0"));
    EXPECT_THAT(refused(quorum_options(4, 4)),
                HasSubstr("outer_quorum: must be at most the number of groups (3), but is 4"));
    EXPECT_THAT(refused(quorum_options(4, 3), {0, 0, 1}), HasSubstr("number of groups (2), but is 3"));
    EXPECT_THAT(refused(quorum_options(4, 3).grace_seconds(1)),
                HasSubstr("outer_grace_seconds: 1 has no effect with an outer_quorum of all 3 groups"));
    EXPECT_THAT(refused(OuterOptions(right).grace_seconds(-1)),
                HasSubstr("outer_grace_seconds: must be at least 0, but is -1"));
    EXPECT_THAT(refused(OuterOptions(right).grace_seconds(INFINITY)), HasSubstr("but is inf"));
    EXPECT_THAT(refused(OuterOptions(right).grace_seconds(480)),
                HasSubstr("outer_grace_seconds: must be below the time limit of the group's collectives (480 s), but"));
    EXPECT_THAT(refused(OuterOptions(right).quorum(std::nullopt).grace_seconds(1)),
                HasSubstr("outer_grace_seconds: 1 has no effect without outer_quorum"));
    EXPECT_THAT(refused(OuterOptions(right).fragments(2)), HasSubstr("fragments: 2 is not possible with outer_quorum"));
    EXPECT_THAT(refused(OuterOptions(right).overlap_steps(1)), HasSubstr("overlap_steps: 1 is not possible"));
    EXPECT_THAT(refused(OuterOptions(right).mix(0.5)), HasSubstr("outer_mix: 0.5 is not possible"));
    hooks::WireOptions wire = right.wire();
    wire.node_size = 1;
    EXPECT_THAT(refused(OuterOptions(right).wire(wire)), HasSubstr("node_size: has no effect with outer_quorum"));
    EXPECT_THAT(refused(quorum_options(4, rank == 1 ? 1 : 2)),
                HasSubstr("outer_quorum differs between ranks: rank 0 has 2, rank 1 has 1"));
  });
}

}  // namespace
}  // namespace narrowcast::testing
