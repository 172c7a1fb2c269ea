// Verifies that every hook gives correct gradients. Each hook's gradients are compared, element by element, with the
// gradients without a hook. Gradients without a hook are compared with a plain float64 mean over the ranks. The verdict
// on one hook and the table of all hooks for people are in hook_report.cpp.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trainer/train/verification/hook_run.h"

namespace narrowcast::verification {

// Two gradients compared element by element.
struct Comparison {
  double largest_absolute = 0;  // of |actual - expected|
  double largest_relative = 0;  // of |actual - expected| / |expected|, where expected is not zero
  double tolerance = 0;         // the largest tolerance of any element
  double worst_share = 0;       // of |actual - expected| / tolerance: up to 1 passes
  bool passed = true;           // every element is within its own tolerance
};

// All three have the same shape, and are compared in float64. A NaN or an infinity in either never passes.
Comparison compare(const at::Tensor& actual, const at::Tensor& expected, const at::Tensor& tolerance);

// Returns the values that cover both comparisons.
Comparison worse_of(const Comparison& a, const Comparison& b);

// One hook's verdict, the same on all ranks.
struct HookReport {
  std::string hook;
  int64_t node_size = 1;  // number of consecutive ranks per node
  Comparison comparison;  // of every element, all ranks and both bucket layouts; with error feedback of their sums
  std::optional<bool> reference_passed =
      std::nullopt;                // whether the reference test's tolerances hold too; empty if they do not apply
  bool replicas_identical = true;  // all ranks end with the same bits
  int64_t payload_bytes_sent = 0;  // in one pass, by the rank that sends most
  double seconds = 0;              // of one pass, on the slowest rank

  bool passed() const { return comparison.passed && replicas_identical && reference_passed.value_or(true); }
};

// The name of a report's case: the hook's name, with ".nodes_of_K" if node_size is another K than 1.
std::string name_of(const HookReport& report);

// A heading and one line per hook, columns aligned, each line with a line feed.
std::string gradient_table(const std::vector<HookReport>& reports);

// The hooks to verify, and the strictness.
struct VerificationOptions {
  std::vector<std::string> hooks = {};  // to verify; "none" is added, as the others are compared with it
  std::string dump_folder = {};         // for HOOK.rankR.safetensors; empty: no files
  double tolerance_scale = 1;           // > 0; multiplies every tolerance
  bool reference_task = false;          // on two ranks, PyTorch's test of its model: its tolerances must hold too
};

// The names of the options of the power_sgd hooks that are verified with the given values. The others are set so that
// the exact mean is sent, regardless of DdpOptions.
std::vector<std::string> verified_power_sgd_options();

// Throws c10::ValueError for a value that is out of its range, before anything is sent.
void check_verification_options(const VerificationOptions& options);

// Verifies hooks one after the other. The gradients without a hook, for comparison, are computed only once.
class Verifier {
 public:
  // A collective: verifies "none". Ignores the hooks that `options` names.
  Verifier(GradientProblem problem, VerificationOptions options, const HookFactory& make_hook);

  const HookReport& none() const { return none_; }

  // A collective: verifies the hook that `ddp` names, with its options; `make_hook` makes it with the same.
  HookReport verify(const DdpOptions& ddp, const HookFactory& make_hook);

 private:
  std::vector<at::Tensor> exact_mean() const;
  void judge(HookReport& report, const PassResult& pass, const std::vector<at::Tensor>& expected) const;

  const GradientProblem problem_;
  const VerificationOptions options_;
  std::vector<PassResult> none_passes_;
  const HookReport none_;
};

// A collective. Writes this rank's dumps and replaces files of the same names: the keys are parameter names, the values
// the first pass's gradients. With a hook that lets replicas differ, every rank keeps its own gradient, which is
// dumped. Before the comparison this gradient is divided by the number of ranks and all-reduced, as in the reference
// test. Throws c10::ValueError for an unknown hook, before anything is sent, and c10::DistBackendError if a peer
// failed.
std::vector<HookReport> verify_gradients(const GradientProblem& problem, const VerificationOptions& options,
                                         const HookFactory& make_hook);

}  // namespace narrowcast::verification
