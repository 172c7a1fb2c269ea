// Proof that every hook gives the gradients it should: each is compared, element by element, with the gradients without
// a hook, and those with a plain float64 mean over the ranks.
#pragma once

#include <string>
#include <vector>

#include "trainer/train/verification/hook_report.h"
#include "trainer/train/verification/hook_run.h"

namespace narrowcast::verification {

// What is verified, and how strictly.
struct VerificationOptions {
  std::vector<std::string> hooks = {};  // to verify; "none" is added, as the others are compared with it
  std::string dump_folder = {};         // for HOOK.rankR.safetensors; empty: nothing is written
  double tolerance_scale = 1;           // > 0; multiplies every tolerance
  bool reference_task = false;          // on two ranks, as in PyTorch's test of its model, its tolerances must hold too
};

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
