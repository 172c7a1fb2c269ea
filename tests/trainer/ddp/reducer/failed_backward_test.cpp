// A backward pass that throws when buckets are already under way, on all ranks: the group stays usable.
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include <narrowcast/ddp.h>
#include <narrowcast/hooks.h>
#include "hooks/table/hook_table.h"
#include "tests/support/error_message.h"
#include "tests/support/in_turn.h"
#include "tests/support/ranks.h"
#include "tests/trainer/ddp/all/ddp_fixtures.h"

namespace narrowcast {
namespace {

using namespace testing;
using ::testing::HasSubstr;
using ::testing::SizeIs;

// Six buckets of about a kilobyte. A backward pass that is to fail does so before it reaches the first layer's bucket.
struct FailingNetImpl : torch::nn::Module {
  FailingNetImpl() {
    for (int64_t i = 0; i < 6; ++i) {
      layers.push_back(register_module("layer" + std::to_string(i), torch::nn::Linear(16, 16)));
      const at::NoGradGuard no_grad;
      layers.back()->weight.copy_(seeded_randn(static_cast<uint64_t>(i), {16, 16}));
      layers.back()->bias.zero_();
    }
  }

  at::Tensor forward(const at::Tensor& x, bool fails) {
    at::Tensor y = layers[0](x);
    if (fails) {
      y.register_hook([](const at::Tensor& /*gradient*/) { throw std::logic_error("on purpose"); });
    }
    for (size_t i = 1; i < layers.size(); ++i) y = layers[i](at::tanh(y));
    return y;
  }

  std::vector<torch::nn::Linear> layers;
};
TORCH_MODULE(FailingNet);

constexpr bool kFails = true;
using FailingDdp = DistributedDataParallel<FailingNet>;

at::Tensor inputs_of(int64_t rank) { return seeded_randn(static_cast<uint64_t>(100 + rank), {4, 16}); }

void pass(FailingDdp& ddp, int64_t rank, bool fails) {
  ddp.zero_grad();
  ddp.backward(ddp.forward(inputs_of(rank), fails).square().sum());
}

// The gradients of the second step of a new DistributedDataParallel, in the buckets of that step.
std::vector<at::Tensor> gradients_of_new(const ProcessGroupPtr& group, const DdpOptions& options, int64_t rank) {
  FailingDdp ddp(FailingNet(), group, options);
  pass(ddp, rank, !kFails);
  pass(ddp, rank, !kFails);
  EXPECT_THAT(ddp.bucket_bytes(), SizeIs(6));
  return gradients_in(ddp.module()->parameters());
}

struct FailedCase {
  std::string hook;
  bool in_one_level;
};

std::vector<FailedCase> failed_cases() {
  std::vector<FailedCase> cases = {{"none", false}};
  for (const std::string& hook : hooks::comm_hook_names()) {
    if (hook != "none") cases.push_back({hook, false});
    if (hooks::takes_wire_options(hook)) cases.push_back({hook, true});
  }
  return cases;
}

DdpOptions options_of_failed(const FailedCase& failed) {
  DdpOptions options = DdpOptions().hook(failed.hook).bucket_cap_mb(0.0008);
  if (failed.in_one_level) options.wire({.node_size = 1});
  if (hooks::hook_row(failed.hook).approximates()) options.power_sgd({.rank = 1, .start = 0});
  return options;
}

class FailedBackwardTest : public ::testing::TestWithParam<std::tuple<FailedCase, int64_t>> {
 protected:
  DdpOptions options() const { return options_of_failed(std::get<0>(GetParam())); }
  int64_t world_size() const { return std::get<1>(GetParam()); }
  // The choice of `auto` depends on measurements.
  bool repeats_its_bits() const { return std::get<0>(GetParam()).hook != "auto"; }
};

TEST_P(FailedBackwardTest, LeavesTheGroupUsable) {
  run_ranks(world_size(), [&](int64_t rank, const ProcessGroupPtr& group) {
    const std::vector<at::Tensor> expected = gradients_of_new(group, options(), rank);
    for (int64_t round = 0; round < 3; ++round) {
      std::optional<FailingDdp> ddp(std::in_place, FailingNet(), group, options());
      pass(*ddp, rank, !kFails);
      EXPECT_THROW(pass(*ddp, rank, kFails), std::logic_error);
      ddp.reset();
      const std::vector<at::Tensor> actual = gradients_of_new(group, options(), rank);
      if (repeats_its_bits()) {
        EXPECT_TRUE(bytes_of(actual) == bytes_of(expected)) << "round " << round;
      }
    }
  });
}

// As when an exception leaves the scope of a training.
TEST_P(FailedBackwardTest, LeavesTheGroupUsableWhenTheExceptionDestroysTheModule) {
  run_ranks(world_size(), [&](int64_t rank, const ProcessGroupPtr& group) {
    const auto train = [&] {
      FailingDdp ddp(FailingNet(), group, options());
      pass(ddp, rank, !kFails);
      pass(ddp, rank, kFails);
    };
    EXPECT_THROW(train(), std::logic_error);
    gradients_of_new(group, options(), rank);
  });
}

std::string name_of_failed(const ::testing::TestParamInfo<std::tuple<FailedCase, int64_t>>& info) {
  const auto& [failed, world_size] = info.param;
  return failed.hook + (failed.in_one_level ? "_in_one_level" : "") + "_world_" + std::to_string(world_size);
}

// The kind of the hook decides what an exception leaves behind, and every kind has several hooks.
INSTANTIATE_TEST_SUITE_P(Hooks, FailedBackwardTest,
                         ::testing::ValuesIn(test::in_turn(failed_cases(), std::vector<int64_t>{2, 3})),
                         name_of_failed);

class FailedBackwardModeTest : public ::testing::TestWithParam<Mode> {};

// Includes a failure of the first pass, from which a static graph is learnt.
TEST_P(FailedBackwardModeTest, TheNextForwardNamesIt) {
  run_ranks(2, [&](int64_t rank, const ProcessGroupPtr& group) {
    for (int64_t passes_before : {0, 1, 2}) {
      FailingDdp ddp(FailingNet(), group, GetParam().options);
      for (int64_t i = 0; i < passes_before; ++i) pass(ddp, rank, !kFails);
      EXPECT_THROW(pass(ddp, rank, kFails), std::logic_error);
      EXPECT_THAT(error_message<c10::ValueError>([&] { ddp.forward(inputs_of(rank), !kFails); }),
                  HasSubstr("the last backward pass did not end, because an exception passed through it"))
          << passes_before;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Modes, FailedBackwardModeTest, ::testing::ValuesIn(all_modes()),
                         [](const auto& info) { return info.param.name; });

// No backward pass was begun: the module remains usable.
TEST(FailedForwardTest, IsForgotten) {
  for (const Mode& mode : all_modes()) {
    run_ranks(2, [&](int64_t rank, const ProcessGroupPtr& group) {
      FailingDdp ddp(FailingNet(), group, mode.options);
      for (int64_t i = 0; i < 3; ++i) {
        at::Tensor loss = ddp.forward(inputs_of(rank), !kFails).sum();
        loss.register_hook([](const at::Tensor& /*gradient*/) { throw std::logic_error("on purpose"); });
        EXPECT_THROW(ddp.backward(loss), std::logic_error);
        EXPECT_NO_THROW(pass(ddp, rank, !kFails)) << mode.name;
        EXPECT_TRUE(same_on_all_ranks(group, gradients_in(ddp.module()->parameters()))) << mode.name;
      }
    });
  }
}

}  // namespace
}  // namespace narrowcast
