// A hook and its row are enough to use it in all parts of the program.
#include <ATen/ops/round.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <vector>

#include <narrowcast/hooks.h>
#include "hooks/basic/basic_hooks.h"
#include "hooks/table/hook_table.h"
#include "tests/support/added_hook_row.h"
#include "tests/support/ranks.h"
#include "tests/trainer/train/bench/small_results.h"
#include "tests/trainer/train/job/small_job.h"
#include "tests/trainer/train/verification/gradient_problems.h"
#include "trainer/train/bench/recommendation.h"
#include "trainer/train/bench/run_bench.h"
#include "trainer/train/job/plan.h"
#include "trainer/train/job/train_job.h"
#include "trainer/train/options/worker_options.h"
#include "trainer/train/verification/verify_gradients.h"

namespace narrowcast {
namespace {

using hooks::HookOptions;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

const double kGrid = std::ldexp(1, -12);

// Averages gradients that are rounded to multiples of kGrid.
class SteppedHook final : public hooks::CommHook {
 public:
  explicit SteppedHook(const HookOptions& options) : group_(options.process_group) {}
  std::string_view name() const override { return "stepped"; }
  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    const at::Tensor buffer = bucket.getBuffer();
    buffer.copy_(at::round(buffer / kGrid) * (kGrid / group_->getSize()));
    count_payload(hooks::ring_all_reduce_bytes(static_cast<int64_t>(buffer.nbytes()), group_->getSize()));
    return hooks::all_reduce_then(group_, buffer, std::string(name()), [buffer] { return buffer; });
  }

 private:
  const ProcessGroupPtr group_;
};

hooks::HookRow stepped_row() {
  const hooks::HookRow& all_reduce = hooks::hook_row("allreduce");
  return {.name = "stepped",
          .make = [](const hooks::HookRow& /*row*/,
                     const HookOptions& options) { return std::make_unique<SteppedHook>(options); },
          .payload_bytes = all_reduce.payload_bytes,
          .error_terms =
              [](const hooks::SentBucket& bucket, const node::NodeLayout& layout, const HookOptions& /*options*/) {
                const int64_t world_size = layout.world_size();
                hooks::ErrorTerms terms = hooks::float32_terms(bucket, world_size);
                terms.first_hop += 0.5 * kGrid / static_cast<double>(world_size);
                return terms;
              }};
}

verification::HookReport report_with(const hooks::HookRow& row) {
  const hooks::AddedHookRow added(row);
  const testing::ProblemParts parts = testing::mlp_parts(2);
  std::vector<verification::HookReport> reports;
  testing::run_ranks(2, [&](int64_t rank, const ProcessGroupPtr& group) {
    auto mine =
        verification::verify_gradients(parts.of_rank(rank, group), {.hooks = {row.name}}, testing::real_hooks(group));
    if (rank == 0) {
      reports = std::move(mine);
    }
  });
  return reports.at(1);
}

TEST(AddedHook, IsKnownByItsNameWithTheOptionsOfItsRow) {
  EXPECT_THROW(DdpOptions().hook("stepped").validate(), c10::ValueError);
  hooks::HookRow row = stepped_row();
  row.options.insert(hooks::OptionKind::kChannels);
  const hooks::AddedHookRow added(row);
  EXPECT_THAT(hooks::comm_hook_names(), Contains("stepped"));
  EXPECT_NO_THROW(DdpOptions().hook("stepped").channel_size(7).validate());
  EXPECT_THROW(DdpOptions().hook("stepped").wire({.error_feedback = true}).validate(), c10::ValueError);
}

TEST(AddedHook, HasItsBytesInThePlan) {
  const hooks::AddedHookRow added(stepped_row());
  const testing::TemporaryFolder folder;
  job::TrainJob train_job = testing::small_job(folder);
  train_job.ddp.hook("stepped");
  const nlohmann::json plan = job::make_plan(train_job, job::make_inputs(train_job), 2);
  EXPECT_EQ(plan["payload_bytes_per_step_and_rank"], 4 * plan["parameters"].get<int64_t>());
}

TEST(AddedHook, IsNamedInTheHelpOfTheFlagsThatItTakes) {
  hooks::HookRow row = stepped_row();
  row.options.insert(hooks::OptionKind::kChannels);
  const hooks::AddedHookRow added(row);
  const auto help_of = [](const char* flag, const char* text) {
    return options::hook_option({.flag = flag, .variable = {}, .help = text}).help;
  };
  EXPECT_EQ(help_of("channel_size", "their size."), "With quantize_per_channel, stepped: their size.");
  EXPECT_THAT(help_of("levels", "how many."), Not(HasSubstr("stepped")));
  EXPECT_THROW(help_of("steps", ""), c10::ValueError);
}

TEST(AddedHook, HasTheNatureOfItsRow) {
  hooks::HookRow row = stepped_row();
  row.chooses = true;
  const testing::TemporaryFolder folder;
  job::TrainJob train_job = testing::small_job(folder);
  train_job.ddp.hook("stepped");
  {
    const hooks::AddedHookRow added(row);
    EXPECT_TRUE(job::make_plan(train_job, job::make_inputs(train_job), 2).contains("auto"));
    EXPECT_THAT(bench::hooks_to_measure({}), Not(Contains("stepped")));
  }
  row.chooses = false;
  row.approximated = hooks::Approximated::kBuckets;
  const hooks::AddedHookRow added(row);
  const nlohmann::json plan = job::make_plan(train_job, job::make_inputs(train_job), 2);
  EXPECT_FALSE(plan.contains("auto"));
  EXPECT_TRUE(plan.contains("least_payload_bytes_per_step_and_rank"));
  EXPECT_THAT(bench::hooks_to_measure({}), Not(Contains("stepped")));
}

TEST(AddedHook, IsVerifiedWithTheBoundOfItsRow) {
  const verification::HookReport report = report_with(stepped_row());
  EXPECT_TRUE(report.passed());
  EXPECT_GT(report.comparison.worst_share, 0.5);
  EXPECT_FALSE(report.reference_passed.has_value());
  hooks::HookRow too_exact = stepped_row();
  too_exact.error_terms = hooks::hook_row("allreduce").error_terms;
  EXPECT_FALSE(report_with(too_exact).passed());
}

TEST(AddedHook, IsMeasuredAndRecommendedIfReplicasStayEqual) {
  const bench::BenchResults results{
      .hooks = {bench::time_of("allreduce", 100, 100), bench::time_of("stepped", 50, 100)}};
  hooks::HookRow row = stepped_row();
  {
    const hooks::AddedHookRow added(row);
    EXPECT_THAT(bench::hooks_to_measure({}), Contains("stepped"));
    EXPECT_EQ(bench::recommend(results).hook, "stepped");
  }
  row.keeps_replicas_equal = false;
  const hooks::AddedHookRow added(row);
  EXPECT_THAT(bench::hooks_to_measure({}), Not(Contains("stepped")));
  EXPECT_THAT(bench::measurable_hooks(), Contains("stepped"));
  EXPECT_EQ(bench::recommend(results).hook, "");
}

}  // namespace
}  // namespace narrowcast
