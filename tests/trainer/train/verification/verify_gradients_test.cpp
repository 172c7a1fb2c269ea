#include "trainer/train/verification/verify_gradients.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <ostream>
#include <string>
#include <vector>

#include <narrowcast/wire_format.h>
#include "hooks/row/levels.h"
#include "hooks/table/hook_table.h"
#include "ops/collectives/all_reduce/algorithms/route.h"
#include "tests/ops/collectives/all_reduce/algorithms/reference_all_reduce.h"
#include "tests/support/ranks.h"
#include "tests/support/temporary_folder.h"
#include "tests/trainer/train/verification/gradient_problems.h"
#include "trainer/train/files/safetensors.h"

namespace narrowcast::verification {
namespace {

using testing::mlp_parts;
using testing::mlp_parts_with_shares;
using testing::ProblemParts;
using testing::real_hooks;
using testing::reference_parts;
using testing::run_ranks;
using testing::SpoiledHook;

using Reports = std::vector<HookReport>;

// The report of rank 0, after a check that all ranks report the same.
Reports verify_on(const ProblemParts& parts, const VerificationOptions& options,
                  const std::function<HookFactory(int64_t rank, const ProcessGroupPtr& group)>& factory) {
  std::vector<Reports> reports(parts.models.size());
  run_ranks(static_cast<int64_t>(parts.models.size()), [&](int64_t rank, const ProcessGroupPtr& group) {
    reports[rank] = verify_gradients(parts.of_rank(rank, group), options, factory(rank, group));
  });
  for (const Reports& each : reports) {
    EXPECT_EQ(each.size(), reports[0].size());
    for (size_t i = 0; i < each.size(); ++i) {
      EXPECT_EQ(each[i].passed(), reports[0][i].passed());
      EXPECT_EQ(each[i].comparison.largest_absolute, reports[0][i].comparison.largest_absolute);
    }
  }
  return reports[0];
}

Reports verify_on(const ProblemParts& parts, const VerificationOptions& options) {
  return verify_on(parts, options, [&](int64_t, const ProcessGroupPtr& group) { return real_hooks(group); });
}

// Verifies as hook `promised` a hook made with the options of `made`.
HookReport verdict_on(const DdpOptions& promised, const DdpOptions& made) {
  ProblemParts parts = mlp_parts(2);
  parts.ddp = DdpOptions(promised).bucket_cap_mb(parts.ddp.bucket_cap_mb());
  return verify_on(parts, {.hooks = {promised.hook()}}, [&](int64_t, const ProcessGroupPtr& group) -> HookFactory {
    return [=](const DdpOptions& ddp) {
      hooks::WireOptions wire = made.with_hook(ddp.hook()).wire();
      wire.node_size = ddp.wire().node_size;
      return hooks::create_comm_hook(ddp.hook(), {group, wire, made.with_hook(ddp.hook()).channel_size()});
    };
  })[1];
}

// Report of "allreduce" with `spoil`, which changes every mean on the ranks for which it is called.
HookReport spoiled_report(const std::function<void(int64_t rank, at::Tensor&)>& spoil) {
  const Reports reports =
      verify_on(mlp_parts(2), {.hooks = {"allreduce"}}, [&](int64_t rank, const ProcessGroupPtr& group) -> HookFactory {
        return [=](const DdpOptions& ddp) -> std::unique_ptr<hooks::CommHook> {
          auto hook = hooks::create_comm_hook(ddp.hook(), {.process_group = group});
          if (hook == nullptr) {
            return nullptr;
          }
          return std::make_unique<SpoiledHook>(std::move(hook), [=](at::Tensor& mean) { spoil(rank, mean); });
        };
      });
  EXPECT_TRUE(reports[0].passed());
  return reports[1];
}

class VerifyGradientsTest : public ::testing::TestWithParam<int64_t> {};

TEST_P(VerifyGradientsTest, EveryHookPassesOnSeveralBuckets) {
  const Reports reports = verify_on(mlp_parts(GetParam()), {.hooks = hooks::comm_hook_names()});
  const auto& rows = hooks::hook_rows();
  const auto in_levels =
      std::count_if(rows.begin(), rows.end(), [](const auto& row) { return row.takes(hooks::OptionKind::kLevels); });
  ASSERT_EQ(reports.size(), rows.size() + (GetParam() == 4 ? in_levels : 0)) << "over nodes of two as well";
  for (const HookReport& report : reports) {
    EXPECT_TRUE(report.passed()) << report.hook << " uses " << report.comparison.worst_share;
    EXPECT_FALSE(report.reference_passed.has_value());
    EXPECT_GT(report.seconds, 0);
  }
}

TEST_P(VerifyGradientsTest, EveryHookPassesTheReferenceTask) {
  const Reports reports =
      verify_on(reference_parts(GetParam()), {.hooks = hooks::comm_hook_names(), .reference_task = true});
  for (const HookReport& report : reports) {
    EXPECT_TRUE(report.passed()) << report.hook;
    const bool is_pytorchs = hooks::hook_row(report.hook).reference_tolerance.has_value();
    EXPECT_EQ(report.reference_passed.has_value(), GetParam() == 2 && is_pytorchs);  // PyTorch's test has two ranks.
  }
}

TEST_P(VerifyGradientsTest, EveryHookPassesWithUnequalShares) {
  for (const HookReport& report : verify_on(mlp_parts_with_shares(GetParam()), {.hooks = hooks::comm_hook_names()})) {
    EXPECT_TRUE(report.passed()) << name_of(report) << " uses " << report.comparison.worst_share;
    EXPECT_TRUE(name_of(report).ends_with(".shares"));
  }
}

// The gradients of the mean over the samples of all ranks, as one process computes them.
std::vector<at::Tensor> gradients_of_all_samples(const ProblemParts& parts) {
  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> targets;
  for (const models::Batch& batch : parts.batches) {
    inputs.push_back(batch.inputs);
    targets.push_back(batch.targets);
  }
  std::vector<at::Tensor> parameters = parts.models[0]->parameters();
  return torch::autograd::grad({parts.models[0]->forward({at::cat(inputs), at::cat(targets)})}, parameters);
}

// Two processes add in other orders, so rounding errors of float32 are allowed besides the hook's bound.
TEST_P(VerifyGradientsTest, UnequalSharesGiveTheMeanOverAllSamplesWithEveryHook) {
  constexpr double kFloat32 = 1e-6;
  const ProblemParts parts = mlp_parts_with_shares(GetParam());
  const std::vector<at::Tensor> expected = gradients_of_all_samples(parts);
  run_ranks(GetParam(), [&](int64_t rank, const ProcessGroupPtr& group) {
    for (const hooks::HookRow& row : hooks::hook_rows()) {
      if (!row.keeps_replicas_equal || row.approximates()) continue;
      GradientProblem problem = parts.of_rank(rank, group);
      problem.ddp.hook(row.name);
      if (row.takes(hooks::OptionKind::kLevels)) problem.ddp.wire(hooks::WireOptions{.node_size = 1});
      const HookRun run = run_hook(problem, real_hooks(group));
      for (const PassResult& pass : run.passes) {
        for (size_t i = 0; i < expected.size(); ++i) {
          EXPECT_TRUE(compare(pass.gradients[i], expected[i], pass.bounds[i] + kFloat32).passed) << row.name;
        }
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, VerifyGradientsTest, ::testing::Values(1, 2, 3, 4));

bool is_accepted(const DdpOptions& options) {
  try {
    options.validate();
    return true;
  } catch (const c10::ValueError&) {
    return false;
  }
}

// Every hook with every choice of options that it takes.
std::vector<DdpOptions> every_combination() {
  std::vector<std::optional<WireFormat>> formats(kWireFormats.begin(), kWireFormats.end());
  formats.emplace_back(std::nullopt);
  std::vector<DdpOptions> combinations;
  for (const std::string& hook : hooks::comm_hook_names()) {
    for (const auto& format : formats) {
      for (const int choices : {0, 1, 2, 3, 4, 5, 6, 7}) {
        for (const auto& channel_size : {std::optional<int64_t>(), std::optional<int64_t>(100)}) {
          const auto seed = (choices & 1) != 0 ? std::optional<int64_t>(5) : std::nullopt;
          hooks::WireOptions wire = {format, seed, (choices & 2) != 0, (choices & 4) != 0};
          if (hooks::takes_wire_options(hook)) wire.node_size = 1;  // All ranks share this machine.
          combinations.push_back(DdpOptions().hook(hook).wire(wire).channel_size(channel_size));
        }
      }
    }
  }
  combinations.erase(std::remove_if(combinations.begin(), combinations.end(), std::not_fn(is_accepted)),
                     combinations.end());
  return combinations;
}

std::string text_of(const DdpOptions& options) {
  const hooks::WireOptions& wire = options.wire();
  return c10::str(options.hook(), " ", wire.format ? to_string(*wire.format) : "-", " at random ",
                  wire.stochastic_rounding_seed.has_value(), " feedback ", wire.error_feedback, " exempt ",
                  wire.exempt_one_dimensional, " channel ", options.channel_size().value_or(0), " nodes of ",
                  wire.node_size.value_or(1));
}

// Hundreds of small collectives take long on a busy machine. So all combinations share one group and one run without a
// hook, with one bucket (128 hidden units) or two (256). With two-shot only the options that matter there are verified.
constexpr double kLargeBucketMb = 0.25;

void expect_pass(int64_t world_size, int64_t hidden, const std::vector<DdpOptions>& combinations) {
  ProblemParts parts = mlp_parts(world_size, hidden);
  parts.ddp.bucket_cap_mb(kLargeBucketMb);
  Reports reports(combinations.size());
  run_ranks(world_size, [&](int64_t rank, const ProcessGroupPtr& group) {
    Verifier verifier(parts.of_rank(rank, group), {}, real_hooks(group));
    for (size_t i = 0; i < combinations.size(); ++i) {
      const DdpOptions ddp = DdpOptions(combinations[i]).bucket_cap_mb(kLargeBucketMb);
      const HookReport mine = verifier.verify(ddp, real_hooks(group));
      if (rank == 0) {
        reports[i] = mine;
      }
    }
  });
  for (size_t i = 0; i < combinations.size(); ++i) {
    const HookReport& report = reports[i];
    EXPECT_EQ(report.hook, combinations[i].hook());
    EXPECT_TRUE(report.passed()) << text_of(combinations[i]) << " uses " << report.comparison.worst_share;
    const auto format = hooks::wire_format_of(report.hook, combinations[i].wire());
    if (format.has_value() && *format != WireFormat::kFp32) {  // fp32 may be exact: two halves and their sum.
      EXPECT_GT(report.comparison.worst_share, 0.1) << text_of(combinations[i]) << ": a loose tolerance hides faults";
    }
  }
}

TEST(VerifyGradients, EveryCombinationOfOptionsPassesInOneHop) {
  const std::vector<DdpOptions> combinations = every_combination();
  // Twelve hooks have no such options and one has a channel size. Fourteen formats (one is the default), nine short
  // names and auto have three switches each. Two sparse formats must have error feedback and have no random rounding.
  ASSERT_EQ(combinations.size(), 12 + 1 + (14 + 9 + 1) * 8 + 2 * 2);
  expect_pass(2, 128, combinations);
}

TEST(VerifyGradients, EveryFormatPassesInTwoHopsWithFeedbackAndWithout) {
  constexpr int64_t kWorld = 5;
  constexpr int64_t kHidden = 256;
  std::vector<DdpOptions> combinations;
  for (const WireFormat format : collectives::two_shot_formats()) {
    for (const int64_t node_size : {1, 2}) {
      for (hooks::WireOptions wire : {hooks::WireOptions{format}, hooks::WireOptions{format, {}, true},
                                      hooks::WireOptions{format, 5, true, true}}) {
        wire.node_size = node_size;
        wire.link_gbit = 2;  // So slow that two-shot pays for the shortest messages.
        wire.link_us = 50;
        EXPECT_EQ(collectives::choose_route(kHidden * kHidden, kWorld, format,
                                            hooks::with_given_link({}, wire, node::NodeLayout::flat(kWorld))),
                  collectives::Route::kTwoShot);
        combinations.push_back(DdpOptions().hook("quantized_allreduce").wire(wire));
      }
    }
  }
  expect_pass(kWorld, kHidden, combinations);
}

// A hook made with other options than promised.
struct Mistake {
  std::string name;
  DdpOptions promised;
  DdpOptions made;
};

void PrintTo(const Mistake& mistake, std::ostream* out) { *out << mistake.name; }

std::vector<Mistake> mistakes() {
  const auto hook = [](const char* name) { return DdpOptions().hook(name); };
  const auto format = [&](WireFormat format) { return hook("quantized_allreduce").wire({.format = format}); };
  return {{"ForgetsWhatRoundingLeftOut", hook("int4").wire({.error_feedback = true}), hook("int4")},
          {"RoundsAtRandom", hook("int8"), hook("int8").wire({.stochastic_rounding_seed = 3})},
          {"RoundsExemptBiases", hook("int8").wire({.exempt_one_dimensional = true}), hook("int8")},
          {"HasAnotherFormat", format(WireFormat::kInt8B128), format(WireFormat::kInt6B32)},
          {"HasLargerChannels", hook("quantize_per_channel").channel_size(8), hook("quantize_per_channel")}};
}

class MistakeTest : public ::testing::TestWithParam<Mistake> {};

TEST_P(MistakeTest, FailsThoughBothOptionsPassWhereTheyArePromised) {
  const auto& [name, promised, made] = GetParam();
  EXPECT_TRUE(verdict_on(promised, promised).passed());
  EXPECT_TRUE(verdict_on(made, made).passed());
  EXPECT_FALSE(verdict_on(promised, made).passed());
}

INSTANTIATE_TEST_SUITE_P(Mistakes, MistakeTest, ::testing::ValuesIn(mistakes()),
                         [](const auto& info) { return info.param.name; });

// PowerSGD is verified with as many columns as its matrices have.
TEST(VerifyGradients, FailsPowerSgdThatLeavesColumnsOut) {
  for (const std::string hook : {"power_sgd", "batched_power_sgd"}) {
    const auto report_of = [&](std::optional<int64_t> rank) {
      return verify_on(mlp_parts(2), {.hooks = {hook}}, [=](int64_t, const ProcessGroupPtr& group) -> HookFactory {
        return [=](const DdpOptions& ddp) {
          hooks::HookOptions options = ddp.hook_options(group);
          if (rank.has_value() && ddp.hook() == hook) options.power_sgd.rank = rank;
          return hooks::create_comm_hook(ddp.hook(), options);
        };
      })[1];
    };
    EXPECT_TRUE(report_of(std::nullopt).passed()) << hook;
    EXPECT_FALSE(report_of(3).passed()) << hook;
  }
}

TEST(VerifyGradients, ErrorsOfTheReferenceTaskAreThoseKnownOfPyTorch) {
  const Reports reports = verify_on(reference_parts(2), {.hooks = {"quantize_per_tensor"}, .reference_task = true});
  // PyTorch's hook has an error of at most 2.1e-5 on this task.
  EXPECT_NEAR(reports[1].comparison.largest_absolute, 2.1e-5, 0.1e-5);
  EXPECT_EQ(reports[1].payload_bytes_sent, 800 + 8);
}

TEST(VerifyGradients, AddsNoneAndKeepsTheOrder) {
  const Reports reports = verify_on(reference_parts(2), {.hooks = {"noop", "none", "allreduce"}});
  ASSERT_EQ(reports.size(), 3U);
  EXPECT_EQ(reports[0].hook, "none");
  EXPECT_EQ(reports[1].hook, "noop");
  EXPECT_EQ(reports[2].hook, "allreduce");
}

TEST(VerifyGradients, FailsAMeanThatIsASum) {
  const HookReport report = spoiled_report([](int64_t, at::Tensor& mean) { mean.mul_(2); });
  EXPECT_FALSE(report.comparison.passed);
  EXPECT_TRUE(report.replicas_identical);
  EXPECT_NEAR(report.comparison.largest_relative, 1, 1e-5);
}

TEST(VerifyGradients, FailsOneWrongElementOfABucket) {
  const HookReport report = spoiled_report([](int64_t, at::Tensor& mean) { mean[0] += 1e-3; });
  EXPECT_FALSE(report.passed());
  EXPECT_NEAR(report.comparison.largest_absolute, 1e-3, 1e-5);
}

TEST(VerifyGradients, FailsRanksThatDifferWithinTheTolerance) {
  const HookReport report = spoiled_report([](int64_t rank, at::Tensor& mean) {
    // An error of one unit in the last place of every element, on one rank only: well within the tolerance.
    mean.mul_(rank == 1 ? 1 + std::ldexp(1, -23) : 1);
  });
  EXPECT_TRUE(report.comparison.passed) << report.comparison.worst_share;
  EXPECT_FALSE(report.replicas_identical);
  EXPECT_FALSE(report.passed());
}

TEST(VerifyGradients, FailsAGradientThatIsNotFinite) {
  const HookReport report = spoiled_report([](int64_t rank, at::Tensor& mean) {
    if (rank == 0) {
      mean[0] = std::numeric_limits<float>::quiet_NaN();
    }
  });
  EXPECT_FALSE(report.passed());
  EXPECT_TRUE(std::isinf(report.comparison.largest_absolute));
}

TEST(VerifyGradients, ToleranceScaleScales) {
  const VerificationOptions strict = {.hooks = {"quantize_per_tensor"}, .tolerance_scale = 0.1};
  const Reports reports = verify_on(mlp_parts(2), strict);
  EXPECT_FALSE(reports[1].passed());
  EXPECT_GT(reports[1].comparison.worst_share, 3);
}

TEST(VerifyGradients, LeavesTheParametersAsTheyAre) {
  const ProblemParts parts = mlp_parts(2);
  const ProblemParts untouched = mlp_parts(2);
  verify_on(parts, {.hooks = {"quantize_per_channel"}});
  for (size_t i = 0; i < parts.models[1]->parameters().size(); ++i) {
    EXPECT_TRUE(at::equal(parts.models[1]->parameters()[i], untouched.models[1]->parameters()[i]));
  }
}

TEST(VerifyGradients, DumpsWhatEachRankEndedWith) {
  const testing::TemporaryFolder temporary;
  const std::string folder = temporary / "dumps/here";
  verify_on(reference_parts(2), {.hooks = {"noop", "allreduce"}, .dump_folder = folder});
  std::vector<at::Tensor> local;
  for (const char* rank : {"0", "1"}) {
    const auto noop = files::read_safetensors(folder + "/noop.rank" + rank + ".safetensors");
    ASSERT_EQ(noop.tensors.size(), 1U);
    local.push_back(noop.tensors.at("t0.p"));
  }
  // The gradient of rank r is x^(1 + r) / 800. Each rank records its own gradient, and the mean is their mean.
  EXPECT_FALSE(at::equal(local[0], local[1]));
  for (const char* name : {"none.rank0", "none.rank1", "allreduce.rank1"}) {
    const at::Tensor mean = files::read_safetensors(folder + "/" + name + ".safetensors").tensors.at("t0.p");
    // Halves and one sum: exact up to one rounding error.
    const double error = (mean - (local[0] + local[1]) / 2).abs().max().item<double>();
    EXPECT_LE(error, std::ldexp(1, -24) * mean.abs().max().item<double>()) << name;
  }
}

TEST(VerifyGradients, RefusesAnUnknownHookAndABadScale) {
  EXPECT_THROW(verify_on(reference_parts(2), {.hooks = {"int3"}}), c10::ValueError);
  EXPECT_THROW(verify_on(reference_parts(2), {.tolerance_scale = 0}), c10::ValueError);
}

}  // namespace
}  // namespace narrowcast::verification
