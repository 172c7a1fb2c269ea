#include "trainer/train/verification/verify_gradients.h"

#include <c10/util/Exception.h>

#include <array>
#include <filesystem>
#include <limits>
#include <utility>

#include <narrowcast/consensus.h>
#include <narrowcast/hooks.h>
#include "hooks/row/hook_options.h"
#include "hooks/row/levels.h"
#include "hooks/table/hook_table.h"
#include "ops/comm/groups/group.h"
#include "trainer/train/files/file_io.h"
#include "trainer/train/files/safetensors.h"
#include "trainer/train/training/evaluation.h"
#include "trainer/train/training/replicas.h"

namespace narrowcast::verification {
namespace {

constexpr double kAnyRate = 1e-9;   // At which every matrix is compressed, even if that sends more bytes.
constexpr int kReferenceRanks = 2;  // The reference test's number; its tolerances fit the gradients of two ranks.

// An option of the power_sgd hooks that is verified with the given value.
struct VerifiedOption {
  const char* name;
  void (*copy)(const hooks::PowerSgdOptions& given, hooks::PowerSgdOptions& verified);
};

template <auto member>
void copy_member(const hooks::PowerSgdOptions& given, hooks::PowerSgdOptions& verified) {
  verified.*member = given.*member;
}

constexpr std::array<VerifiedOption, 3> kVerifiedOptions = {
    {{"power_sgd_seed", copy_member<&hooks::PowerSgdOptions::seed>},
     {"power_sgd_batch", copy_member<&hooks::PowerSgdOptions::batch>},
     {"power_sgd_memory", copy_member<&hooks::PowerSgdOptions::memory>}}};

std::vector<at::Tensor> averaged(const ProcessGroupPtr& group, const std::vector<at::Tensor>& gradients) {
  std::vector<at::Tensor> result;
  for (const at::Tensor& gradient : gradients) {
    result.push_back(training::sum_over_ranks(group, gradient / group->getSize(), "mean of the gradients"));
  }
  return result;
}

std::vector<at::Tensor> in_float64(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> result;
  for (const at::Tensor& tensor : tensors) {
    result.push_back(tensor.to(at::kDouble));
  }
  return result;
}

// The sums of the gradients of passes 0 to `last`, by parameter.
std::vector<at::Tensor> sum_of_passes(const std::vector<PassResult>& passes, size_t last) {
  std::vector<at::Tensor> sums = in_float64(passes[0].gradients);
  for (size_t pass = 1; pass <= last; ++pass) {
    for (size_t i = 0; i < sums.size(); ++i) {
      sums[i] = sums[i] + passes[pass].gradients[i];
    }
  }
  return sums;
}

void dump(const GradientProblem& problem, const std::string& folder, const std::string& hook,
          const std::vector<at::Tensor>& gradients) {
  files::Safetensors content;
  size_t index = 0;
  for (const auto& parameter : problem.model->named_parameters()) {
    if (parameter.value().requires_grad()) {
      content.tensors[parameter.key()] = gradients[index++];
    }
  }
  const std::string name = hook + ".rank" + std::to_string(problem.group->getRank()) + ".safetensors";
  files::write_safetensors((std::filesystem::path(folder) / name).string(), content);
}

// Every rank compares its own results; the verdict is the worst.
Comparison worst_over_ranks(const ProcessGroupPtr& group, const Comparison& mine) {
  const std::vector<double> worst = all_reduce_max(
      group, {mine.largest_absolute, mine.largest_relative, mine.tolerance, mine.worst_share, mine.passed ? 0.0 : 1.0});
  return {.largest_absolute = worst[0],
          .largest_relative = worst[1],
          .tolerance = worst[2],
          .worst_share = worst[3],
          .passed = worst[4] == 0};
}

Comparison compare_all(const std::vector<at::Tensor>& actual, const std::vector<at::Tensor>& expected,
                       const std::vector<at::Tensor>& tolerances) {
  Comparison result;
  for (size_t i = 0; i < actual.size(); ++i) {
    result = worse_of(result, compare(actual[i], expected[i], tolerances[i]));
  }
  return result;
}

// Compares as torch.testing.assert_close(actual, expected) does.
bool within(const hooks::ReferenceTolerance& allowed, const std::vector<at::Tensor>& actual,
            const std::vector<at::Tensor>& expected) {
  std::vector<at::Tensor> tolerances;
  for (const at::Tensor& tensor : expected) {
    tolerances.push_back(tensor.to(at::kDouble).abs() * allowed.relative + allowed.absolute);
  }
  return compare_all(actual, expected, tolerances).passed;
}

// Whether ranks 0 and 1, 2 and 3 and so on can share memory.
bool neighbours_share_nodes(const node::NodeLayout& layout) {
  for (int64_t rank = 1; rank < layout.world_size(); rank += 2) {
    if (layout.node_of(rank) != layout.node_of(rank - 1)) {
      return false;
    }
  }
  return true;
}

// PowerSGD is verified from the first step on, for all matrices and with full rank: then it sends the exact mean.
DdpOptions of_whole_rank(const DdpOptions& ddp) {
  const hooks::HookRow& row = hooks::hook_row(ddp.hook());
  if (!row.approximates()) {
    return ddp;
  }
  hooks::PowerSgdOptions options = {.rank = std::numeric_limits<int64_t>::max(), .start = 0, .error_feedback = false};
  for (const VerifiedOption& option : kVerifiedOptions) {
    option.copy(ddp.power_sgd(), options);
  }
  if (!row.compresses_buckets()) {
    options.min_rate = kAnyRate;
  }
  return DdpOptions(ddp).power_sgd(options);
}

// The options of each run of a hook. A hook that can average in two levels, unless the user chose the levels, is
// verified with every rank as a node. From four ranks on it is also verified with two ranks per node, regardless of the
// actual nodes, if the machine lets both share memory.
std::vector<DdpOptions> over_nodes(const GradientProblem& problem, const std::string& hook) {
  const DdpOptions ddp = of_whole_rank(problem.ddp.with_hook(hook));
  const hooks::HookRow& row = hooks::hook_row(hook);
  if (!row.takes(hooks::OptionKind::kLevels) || hooks::is_set(ddp.wire(), hooks::OptionKind::kLevels)) {
    return {ddp};
  }
  const auto of_size = [&](int64_t node_size) {
    hooks::WireOptions wire = ddp.wire();
    wire.node_size = node_size;
    return DdpOptions(ddp).wire(wire);
  };
  const bool has_one_level = row.chooses && !hooks::measured_device(ddp.hook_options(problem.group));  // See AutoHook.
  const auto found = hooks::find_hook_nodes(ddp.hook_options(problem.group));
  if (problem.group->getSize() < 4 || has_one_level || !neighbours_share_nodes(found->layout)) {
    return {of_size(1)};
  }
  return {of_size(1), of_size(2)};
}

}  // namespace

Verifier::Verifier(GradientProblem problem, VerificationOptions options, const HookFactory& make_hook)
    : problem_(std::move(problem)),
      options_(std::move(options)),
      none_(verify(problem_.ddp.with_hook(hooks::kNoHook), make_hook)) {}

HookReport Verifier::verify(const DdpOptions& ddp, const HookFactory& make_hook) {
  const std::string& hook = ddp.hook();
  const hooks::HookRow& row = hooks::hook_row(hook);
  const bool is_without_hook = !row.make;
  GradientProblem problem = problem_;
  problem.ddp = ddp;
  HookRun run = run_hook(problem, make_hook);
  HookReport report;
  report.hook = hook;
  report.node_size = ddp.wire().node_size.value_or(1);
  report.has_shares = problem.weight.has_value();
  if (!options_.dump_folder.empty()) {
    dump(problem, options_.dump_folder, name_of(report), run.passes[0].gradients);
  }
  for (size_t pass = 0; pass < run.passes.size(); ++pass) {
    if (!row.keeps_replicas_equal) {
      run.passes[pass].gradients = averaged(problem.group, run.passes[pass].gradients);
    }
    const auto judged = [&](const std::vector<PassResult>& passes) {
      return ddp.wire().error_feedback ? sum_of_passes(passes, pass) : passes[pass].gradients;
    };
    report.replicas_identical &= training::equal_on_all_ranks(problem.group, run.passes[pass].gradients);
    judge(report, {.gradients = judged(run.passes), .bounds = run.passes[pass].bounds},
          is_without_hook ? exact_mean() : judged(none_passes_));
  }
  const std::vector<double> slowest =
      all_reduce_max(problem.group, {static_cast<double>(run.payload_bytes_sent), run.seconds});
  report.payload_bytes_sent = static_cast<int64_t>(slowest[0]);
  report.seconds = slowest[1];
  if (is_without_hook) {
    none_passes_ = std::move(run.passes);
  }
  return report;
}

// The expected gradients: the float64 mean of the ranks' own gradients.
std::vector<at::Tensor> Verifier::exact_mean() const {
  return averaged(problem_.group, in_float64(local_gradients(problem_)));
}

void Verifier::judge(HookReport& report, const PassResult& pass, const std::vector<at::Tensor>& expected) const {
  std::vector<at::Tensor> tolerances;
  for (const at::Tensor& bound : pass.bounds) {
    tolerances.push_back(bound * options_.tolerance_scale);
  }
  const Comparison mine = compare_all(pass.gradients, expected, tolerances);
  report.comparison = worse_of(report.comparison, worst_over_ranks(problem_.group, mine));
  const auto& reference = hooks::hook_row(report.hook).reference_tolerance;
  if (reference && options_.reference_task && problem_.group->getSize() == kReferenceRanks) {
    const bool mine_passed = within(*reference, pass.gradients, expected);
    const bool all_passed = all_reduce_max(problem_.group, {mine_passed ? 0.0 : 1.0})[0] == 0;
    report.reference_passed = report.reference_passed.value_or(true) && all_passed;
  }
}

std::vector<std::string> verified_power_sgd_options() {
  std::vector<std::string> names;
  for (const VerifiedOption& option : kVerifiedOptions) {
    names.push_back(option.name);
  }
  return names;
}

void check_verification_options(const VerificationOptions& options) {
  TORCH_CHECK_VALUE(options.tolerance_scale > 0, "tolerance_scale: must be positive, but is ", options.tolerance_scale);
}

std::vector<HookReport> verify_gradients(const GradientProblem& problem, const VerificationOptions& options,
                                         const HookFactory& make_hook) {
  check_verification_options(options);
  for (const std::string& hook : options.hooks) {
    problem.ddp.with_hook(hook).validate();  // Unknown names fail before anything is sent.
  }
  if (!options.dump_folder.empty()) {
    files::make_folder("dump_gradients", options.dump_folder);
  }
  Verifier verifier(problem, options, make_hook);
  std::vector<HookReport> reports = {verifier.none()};
  for (const std::string& hook : options.hooks) {
    if (hooks::hook_row(hook).make) {
      for (const DdpOptions& ddp : over_nodes(problem, hook)) {
        reports.push_back(verifier.verify(ddp, make_hook));
      }
    }
  }
  return reports;
}

}  // namespace narrowcast::verification
