// Proof that every hook gives the gradients it should: each is compared, element by element, with the gradients without
// a hook, and those with a plain float64 mean over the ranks. hook_report.cpp has the verdict on one hook and the table
// of all for people.
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
  double tolerance = 0;         // the largest of any element
  double worst_share = 0;       // of |actual - expected| / tolerance: up to 1 passes
  bool passed = true;           // every element is within its own tolerance
};

// All three of the same shape, compared in float64. A NaN or an infinity in either never passes.
Comparison compare(const at::Tensor& actual, const at::Tensor& expected, const at::Tensor& tolerance);

// Returns what holds for both.
Comparison worse_of(const Comparison& a, const Comparison& b);

// One hook's verdict, the same on all ranks.
struct HookReport {
  std::string hook;
  int64_t node_size = 1;  // how many consecutive ranks were taken for a node
  Comparison comparison;  // of every element, all ranks and both bucket layouts; with error feedback of their sums
  std::optional<bool> reference_passed =
      std::nullopt;                // the reference test's tolerances hold too; none where it does not apply
  bool replicas_identical = true;  // all ranks end with the same bits
  int64_t payload_bytes_sent = 0;  // in one pass, by the rank that sends most
  double seconds = 0;              // of one pass, on the slowest rank

  bool passed() const { return comparison.passed && replicas_identical && reference_passed.value_or(true); }
};

// What a report is of: the hook's name, with ".nodes_of_K" if node_size is another K than 1.
std::string name_of(const HookReport& report);

// One line per hook under a heading, columns aligned, each line ended.
std::string gradient_table(const std::vector<HookReport>& reports);

// What is verified, and how strictly.
struct VerificationOptions {
  std::vector<std::string> hooks = {};  // to verify; "none" is added, as the others are compared with it
  std::string dump_folder = {};         // for HOOK.rankR.safetensors; empty: nothing is written
  double tolerance_scale = 1;           // > 0; multiplies every tolerance
  bool reference_task = false;          // on two ranks, as in PyTorch's test of its model, its tolerances must hold too
};

// The names of those options of the power_sgd hooks that are verified as they are given. The others are set so that
// what is sent is the mean itself, whatever DdpOptions say.
std::vector<std::string> verified_power_sgd_options();

// Throws c10::ValueError for a value that is out of its range, before anything is sent.
void check_verification_options(const VerificationOptions& options);

// Verifies hooks one after the other. What they are compared with, the gradients without a hook, is computed once.
class Verifier {
 public:
  // A collective: verifies "none". The hooks that `options` names are of no account here.
  Verifier(GradientProblem problem, VerificationOptions options, const HookFactory& make_hook);

  const HookReport& none() const { return none_; }

  // A collective: the hook that `ddp` names, with its options; `make_hook` makes it with the same.
  HookReport verify(const DdpOptions& ddp, const HookFactory& make_hook);

 private:
  std::vector<at::Tensor> exact_mean() const;
  void judge(HookReport& report, const PassResult& pass, const std::vector<at::Tensor>& expected) const;

  const GradientProblem problem_;
  const VerificationOptions options_;
  std::vector<PassResult> none_passes_;
  const HookReport none_;
};

// A collective. Writes the dumps of this rank, replacing files of the same names: parameter names are the keys, the
// first pass's gradients the values. A hook that lets replicas differ leaves every rank its own gradient, which is
// dumped; it is then divided by the number of ranks and all-reduced, as the reference test does, before it is compared.
// Throws c10::ValueError for an unknown hook, before anything is sent, and c10::DistBackendError if a peer failed.
std::vector<HookReport> verify_gradients(const GradientProblem& problem, const VerificationOptions& options,
                                         const HookFactory& make_hook);

}  // namespace narrowcast::verification
