// Pieces of a sharded optimizer over all ranks when peers are lost.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include <narrowcast/ddp.h>
#include <narrowcast/sharded_optimizer.h>
#include "ops/comm/engine/engine.h"
#include "tests/support/error_message.h"
#include "tests/support/ranks.h"
#include "tests/trainer/ddp/sharding/over_all_fixtures.h"
#include "trainer/ddp/sharding/sharded_parts.h"

namespace narrowcast::testing {
namespace {

class HeldPiecesOfRanks : public ::testing::TestWithParam<WireFormat> {};

struct TwiceSharded {
  TwiceSharded(const ProcessGroupPtr& group, int64_t steps)
      : parts(group, ddp_options_of({"int8", {3, 1}})),
        sharded(*parts.adamw, parts.ddp.reducer(), ShardOptions().copies(2).parameter_format(GetFormat())) {
    for (int64_t step = 1; step <= steps; ++step) take(step);
  }
  static WireFormat GetFormat() { return HeldPiecesOfRanks::GetParam(); }
  void take(int64_t step) {
    compute_gradients(parts, step, {});
    sharded.step();
  }
  pieces::HeldPieces held() { return sharded.parts().held_pieces(parts.named()); }

  NetTraining parts;
  ShardedOptimizer sharded;
};

void expect_equal_state(const pieces::HeldPieces& a, const pieces::HeldPieces& b) {
  ASSERT_EQ(a.pieces.size(), b.pieces.size());
  for (size_t i = 0; i < a.pieces.size(); ++i) {
    EXPECT_EQ(a.pieces[i].step, b.pieces[i].step);
    EXPECT_EQ(a.pieces[i].tensors.size(), b.pieces[i].tensors.size());
    for (const auto& [name, tensor] : a.pieces[i].tensors) {
      EXPECT_TRUE(at::equal(tensor, b.pieces[i].tensors.at(name))) << pieces::describe(a.pieces[i].range) << name;
    }
  }
}

// The parameters of the pieces that this rank holds.
void expect_equal_held_parameters(TwiceSharded& a, TwiceSharded& b) {
  for (const pieces::Piece& piece : a.held().pieces) {
    const auto elements = [&](TwiceSharded& of) {
      for (const hooks::NamedParameter& parameter : of.parts.named()) {
        if (parameter.name == piece.range.name) {
          return parameter.tensor.detach().flatten().narrow(0, piece.range.begin, piece.range.numel());
        }
      }
      return at::Tensor();
    };
    EXPECT_TRUE(at::equal(elements(a), elements(b))) << pieces::describe(piece.range);
  }
}

// A rank with the averages needs no other rank for the step of its pieces.
TEST_P(HeldPiecesOfRanks, AStepAloneIsThatOfAllRanks) {
  run_ranks(3, [&](int64_t /*rank*/, const ProcessGroupPtr& group) {
    TwiceSharded together(group, 3);
    TwiceSharded alone(group, 2);
    compute_gradients(alone.parts, 3, {});
    EXPECT_TRUE(alone.sharded.parts().share_gradients());
    EXPECT_FALSE(alone.sharded.parts().meet());
    EXPECT_TRUE(alone.sharded.parts().has_all_parameters());
    alone.sharded.parts().step_alone();
    EXPECT_FALSE(alone.sharded.parts().has_all_parameters());
    expect_equal_state(alone.held(), together.held());
    expect_equal_held_parameters(alone, together);
  });
}

// The exchange of parameters breaks off before its first message, or at any moment.
TEST_P(HeldPiecesOfRanks, AfterAFailedExchangeTheirParametersAreThoseOfTheStep) {
  for (const bool has_begun : {false, true}) {
    run_ranks(3, [&](int64_t /*rank*/, const ProcessGroupPtr& group) {
      TwiceSharded together(group, 3);
      TwiceSharded failed(group, 2);
      const auto break_off = [&] { engine::Engine::for_group(group)->break_off("rank 1 is lost"); };
      compute_gradients(failed.parts, 3, {});
      EXPECT_TRUE(failed.sharded.parts().share_gradients());
      EXPECT_FALSE(failed.sharded.parts().meet());
      if (!has_begun) break_off();
      failed.sharded.start_step();
      if (has_begun) break_off();
      const std::string error = error_message<c10::DistBackendError>([&] { failed.sharded.finish_step(); });
      const bool has_failed = error != "nothing was thrown";
      EXPECT_TRUE(has_failed || has_begun);
      EXPECT_NE(failed.sharded.parts().has_all_parameters(), has_failed);
      failed.sharded.parts().finish_held();
      failed.sharded.finish_step();
      EXPECT_NE(failed.sharded.parts().has_all_parameters(), has_failed) << "the failed exchange was the last one";
      expect_equal_state(failed.held(), together.held());
      expect_equal_held_parameters(failed, together);
    });
  }
}

// Such as that of a checkpoint, before the first step after a resume: it moves no parameters.
TEST_P(HeldPiecesOfRanks, AFailedGatherOfTheStateLeavesNothingToFinish) {
  run_ranks(3, [&](int64_t /*rank*/, const ProcessGroupPtr& group) {
    TwiceSharded first(group, 2);
    const hooks::HookState saved = first.sharded.state(first.parts.named());
    TwiceSharded resumed(group, 0);
    resumed.sharded.load_state(saved, resumed.parts.named());
    engine::Engine::for_group(group)->break_off("rank 1 is lost");
    EXPECT_NE(error_message<c10::DistBackendError>([&] { resumed.sharded.state(resumed.parts.named()); }),
              "nothing was thrown");
    EXPECT_TRUE(resumed.sharded.parts().has_all_parameters());
    resumed.sharded.parts().finish_held();
  });
}

INSTANTIATE_TEST_SUITE_P(Formats, HeldPiecesOfRanks, ::testing::Values(WireFormat::kFp32, WireFormat::kInt8B128));

}  // namespace
}  // namespace narrowcast::testing
