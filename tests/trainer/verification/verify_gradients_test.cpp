#include "trainer/verification/verify_gradients.h"

#include <ATen/ops/equal.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "tests/support/ranks.h"
#include "tests/support/temporary_folder.h"
#include "tests/trainer/verification/gradient_problems.h"
#include "trainer/files/safetensors/safetensors.h"
#include "trainer/verification/tolerance/tolerance.h"

namespace narrowcast::verification {
namespace {

using testing::mlp_parts;
using testing::ProblemParts;
using testing::real_hooks;
using testing::reference_parts;
using testing::run_ranks;
using testing::SpoiledHook;

using Reports = std::vector<HookReport>;

// What rank 0 reports, after a check that all report the same.
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
  return verify_on(parts, options, [](int64_t, const ProcessGroupPtr& group) { return real_hooks(group); });
}

// "allreduce" whose every mean `spoil` changes on the ranks it is called with.
HookReport spoiled_report(const std::function<void(int64_t rank, at::Tensor&)>& spoil) {
  const Reports reports =
      verify_on(mlp_parts(2), {.hooks = {"allreduce"}}, [&](int64_t rank, const ProcessGroupPtr& group) -> HookFactory {
        return [=](const std::string& name) -> std::unique_ptr<hooks::CommHook> {
          auto hook = hooks::create_comm_hook(name, {.process_group = group});
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
  ASSERT_EQ(reports.size(), hooks::comm_hook_names().size());
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
    EXPECT_EQ(
        report.reference_passed.has_value(),
        GetParam() == 2 && reference_tolerance(report.hook).has_value());  // The reference test runs on two ranks.
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, VerifyGradientsTest, ::testing::Values(1, 2, 3, 4));

TEST(VerifyGradients, ErrorsOfTheReferenceTaskAreThoseKnownOfPyTorch) {
  const Reports reports = verify_on(reference_parts(2), {.hooks = {"quantize_per_tensor"}, .reference_task = true});
  // PyTorch's own hook on this task is off by 2.1e-5 at most.
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
    // One unit in the last place of every element, on one rank only: well within the tolerance.
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
  // The gradient of rank r is x^(1 + r) / 800: each rank keeps its own, and the mean is the mean.
  EXPECT_FALSE(at::equal(local[0], local[1]));
  for (const char* name : {"none.rank0", "none.rank1", "allreduce.rank1"}) {
    const at::Tensor mean = files::read_safetensors(folder + "/" + name + ".safetensors").tensors.at("t0.p");
    // Halves and one sum: exact but for one rounding.
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
