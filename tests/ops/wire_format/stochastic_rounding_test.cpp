// Stochastic rounding has no bias, and its result depends only on seed, step and position.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>

#include <narrowcast/wire_format.h>
#include "tests/ops/wire_format/wire_inputs.h"

namespace narrowcast {
namespace {

using test::same_bits;

constexpr int64_t kSize = 512;
constexpr int64_t kSteps = 4096;

// Hoeffding's bound of the distance between a mean and its expectation, for independent values in intervals of width 1.
// It holds except in one of 10^9 cases. The seeds are fixed, so a test that passes keeps passing.
double hoeffding(double values, double tests) { return std::sqrt(std::log(2 * tests * 1e9) / (2 * values)); }

class StochasticRounding : public ::testing::TestWithParam<WireFormat> {
 protected:
  const WireFormat format_ = GetParam();

  at::Tensor round_trip(const at::Tensor& x, const EncodeOptions& options) const {
    return decode(encode(x, format_, options), format_, x.numel());
  }

  // The distance between the neighbours of each element, which is at most twice the error of rounding to nearest.
  at::Tensor step_of_each(const at::Tensor& x) const {
    if (codec::wire::is_variable(format_)) {
      const at::Tensor bytes = encode(x, format_, {.seed = 0});
      const auto bits = static_cast<uint16_t>(bytes[0].item<uint8_t>() | bytes[1].item<uint8_t>() << 8);
      return x.abs().to(at::kDouble) * 0x1p-22 + double{codec::wire::scale_value(bits)};
    }
    at::Tensor step = at::empty({x.numel()}, at::kDouble);
    const int64_t block = test::block_of(format_);
    for (int64_t i = 0; i < x.numel(); ++i) {
      const int64_t begin = i / block * block;
      const auto largest = x.slice(0, begin, std::min(begin + block, x.numel())).abs().max().item<double>();
      step[i] = 2 * test::rounding_bound(format_, x[i].item<double>(), largest);
    }
    return step;
  }
};

TEST_P(StochasticRounding, HasNoBias) {
  at::manual_seed(6);
  const at::Tensor x = at::randn({kSize});
  at::Tensor sum = at::zeros({kSize}, at::kDouble);
  for (int64_t step = 0; step < kSteps; ++step) {
    sum += round_trip(x, {.seed = 99, .step = step});
  }
  if (format_ == WireFormat::kFp32) {
    EXPECT_TRUE(same_bits((sum / kSteps).to(at::kFloat), x));
    return;
  }
  const at::Tensor bias = (sum / kSteps - x) / step_of_each(x);
  // Rounding the quotients to 24 binary digits, and codes to 24 binary places, adds less than 2^-16 of a step.
  EXPECT_LE(bias.abs().max().item<double>(), hoeffding(kSteps, kSize) + 0x1p-16);
  EXPECT_LE(std::abs(bias.mean().item<double>()), hoeffding(kSteps * kSize, 1) + 0x1p-16);
  const at::Tensor towards_zero = bias * x.sign();
  EXPECT_LE(std::abs(towards_zero.mean().item<double>()), hoeffding(kSteps * kSize, 1) + 0x1p-16);
}

TEST_P(StochasticRounding, StaysWithinAStep) {
  const at::Tensor x = at::randn({kSize});
  for (int64_t step = 0; step < 20; ++step) {
    const at::Tensor error = round_trip(x, {.seed = -5, .step = step}) - x.to(at::kDouble);
    EXPECT_TRUE((error.abs() <= step_of_each(x)).all().item<bool>());
  }
}

TEST_P(StochasticRounding, IsTheSameForTheSameSeedStepAndPosition) {
  const at::Tensor x = at::randn({300007});
  const test::UseThreads one(1);
  const at::Tensor bytes = encode(x, format_, {.seed = 7, .step = 3, .offset = 11});
  for (const int threads : {2, 4}) {
    const test::UseThreads several(threads);
    EXPECT_TRUE(same_bits(encode(x, format_, {.seed = 7, .step = 3, .offset = 11}), bytes));
  }
}

TEST_P(StochasticRounding, DependsOnSeedStepAndPosition) {
  if (format_ == WireFormat::kFp32) GTEST_SKIP() << "fp32 rounds nothing";
  const at::Tensor x = at::randn({1000});
  const at::Tensor bytes = encode(x, format_, {.seed = 7, .step = 3, .offset = 11});
  for (const EncodeOptions& other :
       {EncodeOptions{}, EncodeOptions{.seed = 8, .step = 3, .offset = 11},
        EncodeOptions{.seed = 7, .step = 4, .offset = 11}, EncodeOptions{.seed = 7, .step = 3, .offset = 12}}) {
    EXPECT_FALSE(at::equal(encode(x, format_, other), bytes));
  }
}

TEST_P(StochasticRounding, OfAPartIsThePartOfTheWhole) {
  if (codec::wire::is_variable(format_)) GTEST_SKIP() << "cannot be split into parts";
  const at::Tensor x = at::randn({2000});
  const at::Tensor whole = encode(x, format_, {.seed = 7, .offset = 40});
  for (const int64_t begin : {256, 512, 1792}) {
    const at::Tensor part = encode(x.slice(0, begin), format_, {.seed = 7, .offset = 40 + begin});
    EXPECT_TRUE(same_bits(part, whole.slice(0, encoded_size(begin, format_))));
  }
}

INSTANTIATE_TEST_SUITE_P(All, StochasticRounding, ::testing::ValuesIn(test::dense_formats()),
                         [](const auto& info) { return std::string(to_string(info.param)); });

}  // namespace
}  // namespace narrowcast
