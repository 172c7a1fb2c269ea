// Runs a test once for each instruction set that the kernels are built for and this machine has.
#pragma once

#include <gtest/gtest.h>
#include <hwy/highway.h>

#include <vector>

namespace narrowcast::test {

// Makes Highway dispatch to one instruction set while it lives.
class UseInstructionSet {
 public:
  explicit UseInstructionSet(int64_t target) : trace_(__FILE__, __LINE__, hwy::TargetName(target)) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(target);
  }
  ~UseInstructionSet() {
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().DeInit();
  }
  UseInstructionSet(const UseInstructionSet&) = delete;
  UseInstructionSet& operator=(const UseInstructionSet&) = delete;

 private:
  testing::ScopedTrace trace_;
};

// The instruction sets of this machine and the generic one.
inline std::vector<int64_t> instruction_sets() {
  std::vector<int64_t> targets = hwy::SupportedAndGeneratedTargets();
  if (targets.empty() || targets.back() != HWY_STATIC_TARGET) {
    targets.push_back(HWY_STATIC_TARGET);
  }
  return targets;
}

// The same and, if this machine has it, AVX3_DL. Only some kernels are built for it, and the tests themselves are not.
inline std::vector<int64_t> all_instruction_sets() {
  std::vector<int64_t> targets = instruction_sets();
  if ((hwy::SupportedTargets() & HWY_AVX3_DL) != 0) targets.push_back(HWY_AVX3_DL);
  return targets;
}

}  // namespace narrowcast::test
