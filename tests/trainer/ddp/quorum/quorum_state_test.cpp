// Saved states of outer optimizers with a quorum, messages that come too late, and ranks that die.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <narrowcast/outer_optimizer.h>
#include "tests/support/error_message.h"
#include "tests/support/ranks.h"
#include "tests/trainer/ddp/outer/outer_fixtures.h"
#include "tests/trainer/ddp/quorum/quorum_fixtures.h"

namespace narrowcast::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kEvery = 3;

OuterOptions on_time(WireFormat format) {
  return quorum_options(kEvery, 2, format)
      .optimizer(OuterKind::kSgd)
      .momentum(format == WireFormat::kFp32 ? 0.5 : 0)
      .grace_seconds(400);
}

struct SavedQuorum {
  OuterState state;
  at::Tensor parameter;
};

SavedQuorum save(QuorumRank& rank) {
  OuterState state = rank.outer->state();
  state.replica = deep_copy(state.replica);
  for (auto& each : state.rank.states) each = deep_copy(each);
  return {std::move(state), rank.parameter.detach().clone()};
}

TEST(QuorumState, ResumesWithTheSameBits) {
  for (const WireFormat format : {WireFormat::kFp32, WireFormat::kInt8B128, WireFormat::kTop2P15}) {
    for (const int64_t saved_at : {2 * kEvery, 2 * kEvery + 2}) {  // At the end of a round, and within one.
      run_ranks(3, [&](int64_t rank, const auto& group) {
        QuorumRank whole(rank, group, on_time(format));
        SavedQuorum saved;
        while (whole.outer->steps() < 5 * kEvery) {
          whole.step();
          if (whole.taken == saved_at) saved = save(whole);
        }
        QuorumRank resumed(rank, group, on_time(format));
        resumed.parameter.detach().copy_(saved.parameter);
        resumed.outer->load_state(saved.state);
        EXPECT_EQ(resumed.outer->steps(), saved_at);
        EXPECT_EQ(resumed.outer->exchanges(), 2);
        while (resumed.outer->steps() < 5 * kEvery) resumed.step();
        EXPECT_TRUE(at::equal(resumed.outer->reference(), whole.outer->reference()));
        EXPECT_TRUE(at::equal(resumed.parameter, whole.parameter));
        EXPECT_EQ(resumed.taken + saved_at, whole.taken);
        whole.finish();
        resumed.finish();
      });
    }
  }
}

// Residuals of two ranks get the effect on the mean of one rank that they had on the mean of two.
TEST(QuorumState, AnotherWorldTakesTheReferenceAndKeepsResiduals) {
  std::vector<SavedQuorum> saved(2);
  const OuterOptions options = quorum_options(kEvery, 1, WireFormat::kInt8B128);
  run_ranks(2, [&](int64_t rank, const auto& group) {
    QuorumRank own(rank, group, OuterOptions(options).quorum(2));
    while (own.outer->steps() < 2 * kEvery) own.step();
    saved[rank] = save(own);
    own.finish();
  });
  run_ranks(1, [&](int64_t rank, const auto& group) {
    QuorumRank own(rank, group, options);
    OuterState state = saved[0].state;
    state.rank.states.push_back(saved[1].state.rank.states[0]);
    own.outer->load_state(state);
    EXPECT_TRUE(at::equal(own.parameter.detach(), saved[0].state.replica.at("reference")));
    EXPECT_EQ(own.outer->steps(), 2 * kEvery);
    const at::Tensor sum = (saved[0].state.rank.states[0].at("residual.fragment.0") +
                            saved[1].state.rank.states[0].at("residual.fragment.0"))
                               .mul(0.5);
    EXPECT_GT(sum.norm().template item<double>(), 0);
    EXPECT_TRUE(at::allclose(own.outer->state().rank.own().at("residual.fragment.0"), sum));
  });
  run_ranks(2, [&](int64_t rank, const auto& group) {
    QuorumRank own(rank, group, options);
    OuterState state = saved[rank].state;
    state.rank.states[0].at("residual.fragment.0") = at::zeros({3});
    EXPECT_THAT(error_message<CorruptInputError>([&] { own.outer->load_state(state); }),
                HasSubstr("'residual.fragment.0' is Float [3], but must be float32 [5000]"));
    state.rank.states[0].erase("residual.fragment.0");
    state.rank.states[0].at("unsent_steps") = at::full({}, -1, at::kLong);
    EXPECT_THAT(error_message<CorruptInputError>([&] { own.outer->load_state(state); }),
                HasSubstr("'unsent_steps' must be in 0..1099511627776, but is -1"));
  });
}

// Rank 2 sends the message for its first round when the others have ended that round.
void send_too_late(RankProgress& progress, int64_t rank, QuorumRank& own) {
  if (rank != 2) return;
  own.before_send = [&progress, &own] {
    own.before_send = nullptr;
    progress.wait_for_others(2, 1);
  };
}

// Takes steps until the first round has ended, without rank 2.
void end_first_round(RankProgress& progress, int64_t rank, QuorumRank& own) {
  send_too_late(progress, rank, own);
  while (own.outer->exchanges() < 1) {
    own.step();
    progress.set(rank, std::ssize(own.rounds));
  }
}

TEST(LateMessages, AreInALaterRound) {
  RankProgress progress(3);
  run_ranks(3, [&](int64_t rank, const auto& group) {
    QuorumRank own(rank, group, quorum_options(kEvery, 2));
    send_too_late(progress, rank, own);
    while (own.outer->steps() < 6 * kEvery) {
      own.step();
      progress.set(rank, std::ssize(own.rounds));
    }
    own.finish();
    EXPECT_THAT(own.rounds.at(0).groups, ElementsAre(0, 1));
    QuorumSimulation simulation(quorum_options(kEvery, 2), {0, 1, 2});
    std::vector<double> steps_of_2;
    for (const auto& round : own.rounds) {
      simulation.take(round);
      for (size_t i = 0; i < round.groups.size(); ++i) {
        if (round.groups[i] == 2) steps_of_2.push_back(round.notes[i][0]);
      }
    }
    EXPECT_EQ(steps_of_2.at(0), kEvery);
    EXPECT_LE((simulation.reference - own.outer->reference()).abs().max().template item<double>(), 1e-4);
    EXPECT_TRUE(same_on_all_ranks(group, {own.parameter}));
    if (rank == 2) {
      EXPECT_EQ(std::accumulate(steps_of_2.begin(), steps_of_2.end(), 0.0), own.taken);
    }
  });
}

// Rank 2's message is late, and the others are within a round when all ranks meet: nobody's steps go back.
TEST(LateMessages, ARoundOfThemCountsNoSteps) {
  RankProgress progress(3);
  run_ranks(3, [&](int64_t rank, const auto& group) {
    QuorumRank own(rank, group, quorum_options(kEvery, 2));
    end_first_round(progress, rank, own);
    own.step();
    EXPECT_EQ(own.outer->steps(), kEvery + 1);
    own.outer->state();
    own.note_rounds();
    EXPECT_THAT(own.rounds.at(1).groups, ElementsAre(2));
    EXPECT_EQ(own.rounds.at(1).steps, kEvery);
    EXPECT_EQ(own.outer->steps(), kEvery + 1);
    if (rank == 1) own.step();
    own.finish();
    EXPECT_EQ(own.outer->steps(), kEvery);
    EXPECT_TRUE(own.outer->steps_are_common());
  });
}

// state, OuterParameters and finish wait for all ranks, which then have the same reference.
TEST(LateMessages, AreAveragedWhenAllRanksMeet) {
  for (const bool finishes : {false, true}) {
    RankProgress progress(3);
    run_ranks(3, [&](int64_t rank, const auto& group) {
      QuorumRank own(rank, group, quorum_options(kEvery, 2));
      end_first_round(progress, rank, own);
      {
        const OuterOptimizer::OuterParameters outer_parameters(*own.outer);
        EXPECT_TRUE(same_on_all_ranks(group, {own.parameter, own.outer->reference()}));
        EXPECT_EQ(own.outer->exchanges(), 1);
      }
      if (finishes) {
        own.finish();
      } else {
        own.outer->state();
        own.note_rounds();
      }
      EXPECT_TRUE(same_on_all_ranks(group, {own.parameter, own.outer->reference()}));
      EXPECT_THAT(own.rounds.at(0).groups, ElementsAre(0, 1));
      EXPECT_THAT(own.rounds.at(1).groups, ElementsAre(2));
      EXPECT_EQ(own.rounds.at(1).notes.at(0)[0], kEvery);
      EXPECT_EQ(own.outer->steps(), kEvery);
    });
  }
}

// Rank 1 takes no part in the second round, so that rank 2's message is in it. The mean is lost, and rank 2 keeps its
// steps since the message.
TEST(LateMessages, ALostMeanKeepsTheStepsSinceTheMessage) {
  RankProgress progress(3);
  run_ranks(3, [&](int64_t rank, const auto& group) {
    QuorumRank own(rank, group, quorum_options(kEvery, 2));
    send_too_late(progress, rank, own);
    while (own.outer->steps() < 2 * kEvery) {
      if (rank > 0 && own.taken == 2 * kEvery - 1)
        progress.wait_until([](const auto& rounds) { return rounds[0] >= 2; });
      if (rank == 0 && own.taken == kEvery) own.parameter.detach()[7] = std::numeric_limits<float>::infinity();
      own.step();
      progress.set(rank, std::ssize(own.rounds));
    }
    EXPECT_EQ(own.outer->lost_exchanges(), 1);
    EXPECT_THAT(own.rounds.at(1).groups, ElementsAre(0, 2));
    if (rank == 2) {
      const auto steps = static_cast<double>(own.taken - kEvery);
      const at::Tensor expected = own.outer->reference() - QuorumRank::gradient_of(2) * (QuorumRank::kStep * steps);
      EXPECT_TRUE(at::allclose(own.parameter.detach(), expected, 1e-4, 1e-4));
    }
    own.finish();
    EXPECT_TRUE(same_on_all_ranks(group, {own.parameter}));
  });
}

// Rank 2 is late by several rounds when the others are in a collective of all ranks.
TEST(LateMessages, AllRanksMeetAfterTheSameRound) {
  RankProgress progress(3);
  run_ranks(3, [&](int64_t rank, const auto& group) {
    QuorumRank own(rank, group, quorum_options(kEvery, 2));
    if (rank == 2) {
      progress.wait_for_others(2, 4);
    } else {
      while (own.outer->steps() < 4 * kEvery) {
        own.step();
        progress.set(rank, std::ssize(own.rounds));
      }
    }
    const OuterState state = own.outer->state();
    EXPECT_EQ(own.outer->steps(), 4 * kEvery);
    EXPECT_EQ(own.outer->exchanges(), 4);
    EXPECT_TRUE(same_on_all_ranks(group, {state.replica.at("reference"), own.parameter}));
    own.finish();
  });
}

TEST(LateRanks, WithoutAQuorumTheRoundTimesOut) {
  RankProgress progress(3);
  run_ranks(3, [&](int64_t rank, const auto& group) {
    QuorumRank own(rank, group, quorum_options(1, 2));
    if (rank > 0) {
      progress.wait_until([](const std::vector<int64_t>& all) { return all[0] == 1; });
      return;
    }
    set_timeout(group, std::chrono::milliseconds(500));
    EXPECT_THAT(error_message<c10::DistBackendError>([&] { own.step(); }),
                HasSubstr("outer round 0 timed out after 500ms: only groups 0 of 3 have sent a message, but "
                          "outer_quorum is 2"));
    progress.set(0, 1);
  });
}

constexpr int kDied = 7;

TEST(LateRanksInProcesses, ADeadRankIsAnErrorOnAllOthers) {
  const auto began = std::chrono::steady_clock::now();
  const std::vector<int> codes = fork_ranks(3, [](int64_t rank, const auto& group) {
    QuorumRank own(rank, group, quorum_options(kEvery, 2));
    std::string message;
    try {
      for (int64_t step = 0; step < 100'000'000; ++step) {
        if (rank == 2 && step == 10) ::_exit(kDied);
        own.step();
      }
    } catch (const c10::DistBackendError& error) {
      message = error.what();
    }
    EXPECT_THAT(message, HasSubstr("rank " + std::to_string(rank)));
  });
  EXPECT_THAT(codes, ElementsAre(kRankPassed, kRankPassed, kDied));
  EXPECT_LT(std::chrono::steady_clock::now() - began, kPatience);
}

}  // namespace
}  // namespace narrowcast::testing
