#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <narrowcast/ddp.h>
#include <narrowcast/outer_optimizer.h>
#include "tests/support/error_message.h"
#include "tests/support/ranks.h"
#include "tests/trainer/ddp/outer/outer_fixtures.h"

namespace narrowcast::testing {
namespace {

using ::testing::HasSubstr;

TEST(OuterOptimizerErrors, RanksThatDifferAreRefusedOnAllOfThem) {
  run_ranks(3, [&](int64_t rank, const auto& group) {
    SmallTraining training(rank);
    EXPECT_THAT(error_message<c10::ValueError>(
                    [&] { OuterOptimizer(*training.inner, group, outer_options(rank == 2 ? 3 : 4)); }),
                HasSubstr("sync_every differs between ranks: rank 0 has 4, rank 2 has 3"));
    if (rank == 1) training.parameters[0].detach().add_(1);
    EXPECT_THAT(error_message<c10::ValueError>([&] { OuterOptimizer(*training.inner, group, outer_options(4)); }),
                HasSubstr("hash of the parameters, with which local steps begin, differs between ranks"));
    OuterOptimizer warm(*training.inner, group, outer_options(4).warmup_steps(1));
    EXPECT_THAT(error_message<c10::ValueError>([&] { training.step(warm); }),
                HasSubstr("after outer_warmup, in whose steps gradients must be averaged over all ranks"));
  });
}

TEST(OuterOptimizerErrors, ParametersThatItCannotExchangeAreRefused) {
  run_ranks(1, [&](int64_t /*rank*/, const auto& group) {
    const auto refused = [&](const at::Tensor& parameter, const OuterOptions& options) {
      torch::optim::SGD sgd({parameter}, torch::optim::SGDOptions(0.1));
      return error_message<c10::ValueError>([&] { OuterOptimizer(sgd, group, options); });
    };
    EXPECT_THAT(refused(at::zeros({3}, at::kDouble).requires_grad_(), outer_options(1)), HasSubstr("is Double"));
    EXPECT_THAT(refused(at::zeros({3}), outer_options(1)), HasSubstr("no parameter that requires a gradient"));
    EXPECT_THAT(refused(at::zeros({4, 4}).narrow(1, 0, 2).requires_grad_(), outer_options(1)), HasSubstr("has holes"));
    EXPECT_THAT(refused(at::zeros({3}).requires_grad_(), outer_options(4).fragments(4)),
                HasSubstr("fragments: must be at most the number of elements (3), but is 4"));
    torch::optim::SGD sgd({at::zeros({3}).requires_grad_()}, torch::optim::SGDOptions(0.1));
    EXPECT_THAT(error_message<c10::ValueError>([&] { OuterOptimizer(sgd, {}, outer_options(1)); }),
                HasSubstr("process_group must not be null"));
  });
}

}  // namespace
}  // namespace narrowcast::testing
