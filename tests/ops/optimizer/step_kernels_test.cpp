// The kernels of optimizer steps, compared with the plain formulas on every instruction set.
#include "ops/cpu/optimizer/step_kernels.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "tests/ops/codec/instruction_sets.h"
#include "tests/ops/optimizer/step_arrays.h"

namespace narrowcast::cpu {
namespace {

using test::expect_same_arrays;
using test::Floats;
using test::instruction_sets;
using test::plain_step;
using test::random_arrays;
using test::StepArrays;
using test::UseInstructionSet;

constexpr AdamWFactors kAdamW{.gradient_scale = 0.7F,
                              .beta1 = 0.9F,
                              .rest_of_beta1 = 0.1F,
                              .beta2 = 0.99F,
                              .rest_of_beta2 = 0.01F,
                              .rate = 3e-3F,
                              .epsilon = 1e-8F,
                              .decay = 3e-4F};
constexpr SgdFactors kSgd{
    .gradient_scale = 0.7F, .rate = 0.03F, .decay = 0.1F, .momentum = 0.9F, .share = 0.75F, .nesterov = false};
constexpr SgdFactors kNesterov{
    .gradient_scale = 0.7F, .rate = 0.03F, .decay = 0.1F, .momentum = 0.9F, .share = 1, .nesterov = true};

// Every pair of these numbers meets in some element of two arrays.
StepArrays special_arrays() {
  using Limits = std::numeric_limits<float>;
  const Floats numbers = {0,
                          -0.0F,
                          1,
                          -1,
                          Limits::infinity(),
                          -Limits::infinity(),
                          Limits::quiet_NaN(),
                          Limits::max(),
                          -Limits::max(),
                          Limits::min(),
                          -Limits::denorm_min(),
                          1e-20F,
                          1e20F};
  StepArrays arrays;
  for (size_t i = 0; i < numbers.size() * numbers.size(); ++i) {
    arrays.parameters.push_back(numbers[(i + 3) % numbers.size()]);
    arrays.gradients.push_back(numbers[i % numbers.size()]);
    arrays.first.push_back(numbers[i / numbers.size()]);
    arrays.second.push_back(std::fabs(numbers[i / numbers.size()]));
  }
  return arrays;
}

// Arrays with squares that are normal, subnormal and infinite.
std::vector<std::pair<std::string, StepArrays>> arrays_of(int64_t n) {
  return {{"random", random_arrays(n)},
          {"small squares", random_arrays(n, 1e-19F)},
          {"subnormal", random_arrays(n, 1e-39F)},
          {"large squares", random_arrays(n, 1e19F)},
          {"special", special_arrays()}};
}

// A step of part of the arrays, once by the kernel and once by the formulas.
struct BothSteps {
  std::string name;
  void (*kernel)(StepArrays& arrays, int64_t begin, int64_t n);
  void (*plain)(StepArrays& arrays, int64_t begin, int64_t n);
};

SgdArrays without_momenta(SgdArrays arrays) {
  arrays.momenta = nullptr;
  return arrays;
}

const std::vector<BothSteps> kBothSteps = {
    {"adamw", [](StepArrays& a, int64_t begin, int64_t n) { step_adamw(kAdamW, a.adamw(begin, n)); },
     [](StepArrays& a, int64_t begin, int64_t n) { plain_step(kAdamW, a.adamw(begin, n)); }},
    {"sgd", [](StepArrays& a, int64_t begin, int64_t n) { step_sgd(kSgd, without_momenta(a.sgd(begin, n))); },
     [](StepArrays& a, int64_t begin, int64_t n) { plain_step(kSgd, without_momenta(a.sgd(begin, n))); }},
    {"momentum", [](StepArrays& a, int64_t begin, int64_t n) { step_sgd(kSgd, a.sgd(begin, n)); },
     [](StepArrays& a, int64_t begin, int64_t n) { plain_step(kSgd, a.sgd(begin, n)); }},
    {"nesterov", [](StepArrays& a, int64_t begin, int64_t n) { step_sgd(kNesterov, a.sgd(begin, n)); },
     [](StepArrays& a, int64_t begin, int64_t n) { plain_step(kNesterov, a.sgd(begin, n)); }}};

std::vector<int64_t> sizes() {
  std::vector<int64_t> all;
  for (int64_t size = 0; size < 70; ++size) all.push_back(size);
  all.insert(all.end(), {127, 1029});
  return all;
}

// Elements before and behind the stepped ones keep their bits.
void expect_plain_step(const BothSteps& step, const StepArrays& before, int64_t begin, int64_t n) {
  StepArrays expected = before;
  step.plain(expected, begin, n);
  StepArrays actual = before;
  step.kernel(actual, begin, n);
  expect_same_arrays(actual, expected);
}

TEST(OptimizerStepKernels, EqualThePlainFormulas) {
  for (const int64_t size : sizes()) {
    for (const auto& [name, arrays] : arrays_of(size + 3)) {
      for (const int64_t target : instruction_sets()) {
        const UseInstructionSet use(target);
        for (const BothSteps& step : kBothSteps) {
          SCOPED_TRACE(step.name + " of " + name + " of size " + std::to_string(size));
          expect_plain_step(step, arrays, 0, std::min(size, arrays.size()));
        }
      }
    }
  }
}

TEST(OptimizerStepKernels, NeedNoAlignment) {
  const StepArrays arrays = random_arrays(100);
  for (const int64_t target : instruction_sets()) {
    const UseInstructionSet use(target);
    for (const BothSteps& step : kBothSteps) {
      for (int64_t begin = 0; begin < 20; ++begin) {
        SCOPED_TRACE(step.name + " from " + std::to_string(begin));
        expect_plain_step(step, arrays, begin, 70);
      }
    }
  }
}

TEST(OptimizerStepKernels, GiveEqualBitsForPiecesWithEveryBorder) {
  constexpr int64_t kSize = 83;
  for (const auto& [name, before] :
       {std::pair("random", random_arrays(kSize)), std::pair("special", special_arrays())}) {
    for (const int64_t target : instruction_sets()) {
      const UseInstructionSet use(target);
      for (const BothSteps& step : kBothSteps) {
        StepArrays whole = before;
        step.kernel(whole, 0, whole.size());
        for (int64_t border = 0; border <= before.size(); ++border) {
          SCOPED_TRACE(step.name + " of " + name + " with border " + std::to_string(border));
          StepArrays pieces = before;
          step.kernel(pieces, border, before.size() - border);
          step.kernel(pieces, 0, border);
          expect_same_arrays(pieces, whole);
        }
      }
    }
  }
}

TEST(OptimizerStepKernels, AcceptNullWithoutElements) {
  for (const int64_t target : instruction_sets()) {
    const UseInstructionSet use(target);
    step_adamw(kAdamW, {});
    step_sgd(kSgd, {});
  }
}

// Without flushing, the averages of zeros would stay at some multiples of 2^-149 forever.
TEST(OptimizerStepKernels, LetMomentsDecayToZero) {
  for (const int64_t target : instruction_sets()) {
    const UseInstructionSet use(target);
    StepArrays arrays = random_arrays(33);
    std::fill(arrays.gradients.begin(), arrays.gradients.end(), 0.0F);
    for (int64_t step = 0; step < 20000; ++step) step_adamw(kAdamW, arrays.adamw(0, 33));
    EXPECT_EQ(arrays.first, Floats(33));
    EXPECT_EQ(arrays.second, Floats(33));
  }
}

// Gradients, factors and parameters are not flushed.
TEST(OptimizerStepKernels, KeepSubnormalNumbersOutsideMoments) {
  constexpr SgdFactors kPlain{.gradient_scale = 1, .rate = 1, .decay = 0, .momentum = 0, .share = 1, .nesterov = false};
  for (const int64_t target : instruction_sets()) {
    const UseInstructionSet use(target);
    Floats parameters(5, 0x3p-149F);
    const Floats gradients(5, 0x1p-149F);
    step_sgd(kPlain, {parameters.data(), gradients.data(), nullptr, 5});
    EXPECT_EQ(parameters, Floats(5, 0x2p-149F));
  }
}

}  // namespace
}  // namespace narrowcast::cpu
