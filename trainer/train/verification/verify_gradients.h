// Verifies that every hook gives correct gradients. Each hook's gradients are compared, element by element, with the
// gradients without a hook. Gradients without a hook are compared with a plain float64 mean over the ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "trainer/train/verification/hook_report.h"
#include "trainer/train/verification/hook_run.h"

namespace narrowcast::verification {

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
