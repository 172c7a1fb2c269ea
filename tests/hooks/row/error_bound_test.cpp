#include "hooks/row/error_bound.h"

#include <ATen/Context.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/quantize_per_tensor_dynamic.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include <narrowcast/hooks.h>
#include <narrowcast/wire_format.h>
#include "hooks/table/hook_table.h"
#include "ops/codec/wire_format.h"
#include "ops/collectives/all_reduce/algorithms/route.h"
#include "tests/ops/collectives/all_reduce/algorithms/reference_all_reduce.h"

namespace narrowcast::hooks {
namespace {

using BoundOfHookAndWorld = std::tuple<std::string, int64_t>;
using FormatAndSize = std::tuple<WireFormat, int64_t>;

// Heavy-tailed gradients of every rank, including tiny ones.
std::vector<at::Tensor> gradients_of(int64_t world_size, int64_t size) {
  at::manual_seed(7);
  std::vector<at::Tensor> gradients;
  for (int64_t rank = 0; rank < world_size; ++rank) {
    gradients.push_back(at::randn({size}).pow(3) * 1e-2 * at::randn({size}).abs().pow(4));
  }
  return gradients;
}

// One rank's terms, from the hook's row.
ErrorTerms terms_of(const std::string& hook, const SentBucket& bucket, int64_t world_size,
                    const HookOptions& options = {}) {
  return hook_row(hook).error_terms(bucket, node::NodeLayout::flat(world_size), options);
}

at::Tensor bound_of(const std::string& hook, const at::Tensor& gradient, int64_t world_size,
                    const HookOptions& options = {}) {
  return terms_of(hook, {gradient}, world_size, options).sum();
}

at::Tensor bound_of(const std::string& hook, const std::vector<at::Tensor>& gradients) {
  at::Tensor bound = at::zeros(gradients[0].sizes(), at::kDouble);
  for (const at::Tensor& gradient : gradients) {
    bound += bound_of(hook, gradient, static_cast<int64_t>(gradients.size()));
  }
  return bound;
}

// The bound of all ranks, if they compute the sum of one term together.
at::Tensor bound_of_ranks(const std::string& hook, const std::vector<at::Tensor>& gradients,
                          const HookOptions& options) {
  const auto world_size = static_cast<int64_t>(gradients.size());
  at::Tensor sum;
  at::Tensor bound = at::zeros(gradients[0].sizes(), at::kDouble);
  for (const at::Tensor& gradient : gradients) {
    terms_of(hook,
             {.gradients = gradient,
              .sum_over_ranks =
                  [&](const at::Tensor& term) {
                    sum = sum.defined() ? sum + term : term.clone();
                    return term * world_size;
                  }},
             world_size, options);
  }
  for (const at::Tensor& gradient : gradients) {
    const SumOverRanks same = [&](const at::Tensor&) { return sum; };
    bound += terms_of(hook, {.gradients = gradient, .sum_over_ranks = same}, world_size, options).sum();
  }
  return bound;
}

// PyTorch's affine quantisation of one row to 8 bits and back.
at::Tensor affine_round_trip(const at::Tensor& row) {
  return at::quantize_per_tensor_dynamic(row, at::kQUInt8, /*reduce_range=*/false).dequantize();
}

at::Tensor round_trip(const std::string& hook, const at::Tensor& gradient) {
  if (hook == "quantize_per_tensor") {
    return affine_round_trip(gradient);
  }
  at::Tensor result = gradient.clone();
  for (int64_t begin = 0; begin < gradient.numel(); begin += 512) {
    const int64_t size = std::min<int64_t>(512, gradient.numel() - begin);
    result.narrow(0, begin, size).copy_(affine_round_trip(gradient.narrow(0, begin, size)));
  }
  return result;
}

// The hook's arithmetic in one process: the expected result of the ranks.
at::Tensor mean_of(const std::string& hook, const std::vector<at::Tensor>& gradients) {
  const auto world_size = static_cast<double>(gradients.size());
  at::Tensor sum = at::zeros_like(gradients[0]);
  if (hook == "fp16_compress" || hook == "bf16_compress") {
    sum = sum.to(hook == "fp16_compress" ? at::kHalf : at::kBFloat16);
    for (const at::Tensor& gradient : gradients) {
      sum += gradient.to(sum.scalar_type()) / world_size;
    }
    return sum.to(at::kFloat);
  }
  for (const at::Tensor& gradient : gradients) {
    sum += hook == "none" ? gradient / world_size : round_trip(hook, gradient);
  }
  return hook == "none" ? sum : sum / world_size;
}

class ErrorBoundTest : public ::testing::TestWithParam<BoundOfHookAndWorld> {};

TEST_P(ErrorBoundTest, HoldsAndIsNotLoose) {
  const auto& [hook, world_size] = GetParam();
  const std::vector<at::Tensor> gradients = gradients_of(world_size, 5000);
  at::Tensor exact = at::zeros({5000}, at::kDouble);
  for (const at::Tensor& gradient : gradients) {
    exact += gradient.to(at::kDouble) / static_cast<double>(world_size);
  }
  const at::Tensor share = (mean_of(hook, gradients).to(at::kDouble) - exact).abs() / bound_of(hook, gradients);
  EXPECT_LE(share.max().item<double>(), 1);
  // With 5000 elements, some have most of their rounding errors near half a step in the same direction. A mean over one
  // rank is exact.
  const double expected_share = hook != "none" ? 0.3 : world_size == 1 ? 0 : 0.1;
  EXPECT_GE(share.max().item<double>(), expected_share);
}

INSTANTIATE_TEST_SUITE_P(HooksAndWorlds, ErrorBoundTest,
                         ::testing::Combine(::testing::Values("none", "fp16_compress", "bf16_compress",
                                                              "quantize_per_tensor", "quantize_per_channel"),
                                            ::testing::Values(1, 2, 3, 4)));

// quantized_allreduce in every format, in one shot (5000 elements) and in two.
class WireErrorBoundTest : public ::testing::TestWithParam<FormatAndSize> {};

// The least share of its bound that the largest error must reach. Variable formats assume numbers that reach as far on
// both sides of 0. Their step is up to 5/3 of the actual one with codes of 2 bits, which hold 5/2 steps or 3/2.
double least_share(WireFormat format) {
  if (format == WireFormat::kFp32) return 0.1;
  if (codec::wire::is_sparse(format)) return 0.2;  // Most elements are far below the largest one of their block.
  return codec::wire::is_variable(format) ? 0.3 * 3 / 5 : 0.3;
}

TEST_P(WireErrorBoundTest, HoldsAndIsNotLoose) {
  const auto& [format, size] = GetParam();
  const std::vector<at::Tensor> gradients = gradients_of(3, size);
  const bool two_shots = collectives::choose_route(size, 3, format) == collectives::Route::kTwoShot;
  EXPECT_EQ(two_shots, size > 5000 && !codec::wire::is_sparse(format));
  const at::Tensor exact = at::stack(gradients).to(at::kDouble).mean(0);
  for (const bool at_random : {false, true}) {
    if (at_random && codec::wire::is_sparse(format)) continue;
    WireOptions wire{.format = format, .link_gbit = 10, .link_us = 50};  // The default of choose_route.
    collectives::Reference reference{format, {at_random, 5, 0, 0}};
    if (at_random) wire.stochastic_rounding_seed = 5;
    const at::Tensor bound = bound_of_ranks("quantized_allreduce", gradients, {nullptr, wire});
    const at::Tensor mean = two_shots ? two_shot_mean(reference, gradients) : one_shot_mean(reference, gradients);
    const at::Tensor share = (mean.to(at::kDouble) - exact).abs() / bound;
    EXPECT_LE(share.max().item<double>(), 1) << "at random: " << at_random;
    EXPECT_GE(share.max().item<double>(), least_share(format)) << "at random: " << at_random;
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, WireErrorBoundTest,
                         ::testing::Combine(::testing::ValuesIn(kWireFormats), ::testing::Values(5000, 300'000)));

TEST(ErrorBound, IsKnownForEveryHook) {
  for (const std::string& hook : comm_hook_names()) {
    EXPECT_EQ(bound_of(hook, at::full({600}, 0.5), 2).sizes(), at::IntArrayRef({600})) << hook;
    EXPECT_EQ(bound_of(hook, at::zeros({0}), 2).numel(), 0) << hook;
  }
  EXPECT_THROW(bound_of("no_such_hook", at::zeros({1}), 2), c10::ValueError);
}

TEST(ErrorBound, OfQuantizedHooksIsHalfAStepPerRank) {
  // A range of 0..255 has steps of 1.
  at::Tensor bucket = at::zeros({600});
  bucket[0] = 255;
  const at::Tensor per_tensor = bound_of("quantize_per_tensor", bucket, 2);
  EXPECT_NEAR(per_tensor[599].item<double>(), 0.25, 1e-4);
  const at::Tensor per_channel = bound_of("quantize_per_channel", bucket, 2);
  EXPECT_NEAR(per_channel[511].item<double>(), 0.25, 1e-4);
  // The second row is all zeros: its step is the smallest possible one, 2^-23.
  EXPECT_NEAR(per_channel[512].item<double>(), std::ldexp(1, -25), std::ldexp(1, -35));
  const at::Tensor of_100 = bound_of("quantize_per_channel", bucket, 2, {nullptr, {}, 100});
  EXPECT_NEAR(of_100[99].item<double>(), 0.25, 1e-4);
  EXPECT_NEAR(of_100[100].item<double>(), std::ldexp(1, -25), std::ldexp(1, -35));
}

TEST(ErrorBound, OfRandomRoundingIsAWholeStep) {
  const at::Tensor bucket = at::full({128}, 127.0);  // A step of 1.
  const auto of = [&](const WireOptions& wire) {
    return terms_of("int8", {bucket}, 2, {nullptr, wire}).first_hop[5].item<double>();
  };
  // Half a step, or a step, over two ranks; a scale may be 2^-7 of itself above its least value.
  EXPECT_NEAR(of({}), 0.25 * (1 + std::ldexp(1, -7)), 1e-4);
  EXPECT_NEAR(of({.stochastic_rounding_seed = 1}), 2 * of({}), 1e-4);
}

TEST(ErrorBound, OfExemptElementsIsThatOfFloat32) {
  at::Tensor bucket = at::full({256}, 1.0);
  bucket[3] = 1000;
  const at::Tensor exempt = bucket == 1000;
  const HookOptions options{nullptr, {.exempt_one_dimensional = true}};
  const ErrorTerms terms = terms_of("int8", {.gradients = bucket, .exempt = exempt}, 2, options);
  EXPECT_EQ(terms.first_hop[3].item<double>(), 0);
  EXPECT_NEAR(terms.float32[3].item<double>(), 1000 * 4 * std::ldexp(1, -24), 1e-9);
  // It does not affect its neighbours' scale.
  EXPECT_LT(terms.first_hop[4].item<double>(), 1.0 / 127);
  EXPECT_GT(terms_of("int8", {bucket}, 2, options).first_hop[4].item<double>(), 1.0);
}

TEST(ErrorBound, GrowsWithTheResidual) {
  const at::Tensor bucket = at::full({128}, 7.0);
  const HookOptions options{nullptr, {.error_feedback = true}};
  const at::Tensor without = terms_of("int4", {bucket}, 2, options).first_hop;
  const at::Tensor residual = at::full({128}, 7.0, at::kDouble);
  const ErrorTerms with = terms_of("int4", {.gradients = bucket, .residual = residual}, 2, options);
  EXPECT_TRUE(at::allclose(with.first_hop, without * 2));
}

TEST(ErrorBound, OfFloat32HooksFollowsTheElement) {
  at::Tensor bucket = at::zeros({2});
  bucket[1] = 1000;
  const at::Tensor bound = bound_of("allreduce", bucket, 2);
  EXPECT_LT(bound[0].item<double>(), 1e-40);
  EXPECT_NEAR(bound[1].item<double>(), 1000 * 4 * std::ldexp(1, -24), 1e-9);
}

// The mean contains the large numbers of all ranks, so its step is not that of any single rank's message.
TEST(ErrorBound, OfVariableFormatsKnowsTheStepOfTheMean) {
  constexpr int64_t kNumel = 1 << 18;
  at::manual_seed(3);
  std::vector<at::Tensor> gradients;
  for (int64_t rank = 0; rank < 3; ++rank) {
    gradients.push_back(at::randn({kNumel}) * (at::arange(kNumel).div(32, "floor").remainder(3) == rank));
  }
  const WireOptions wire{.format = WireFormat::kVar3, .link_gbit = 10, .link_us = 50};
  const at::Tensor exact = at::stack(gradients).to(at::kDouble).mean(0);
  const at::Tensor bound = bound_of_ranks("quantized_allreduce", gradients, {nullptr, wire});
  const at::Tensor error = (collectives::two_shot_mean({WireFormat::kVar3}, gradients).to(at::kDouble) - exact).abs();
  EXPECT_LE((error / bound).max().item<double>(), 1);
  const HopErrors alone =
      wire_error({WireFormat::kVar3, wire}, gradients[0].abs().to(at::kDouble), node::NodeLayout::flat(3));
  EXPECT_GT((error / alone.first).max().item<double>(), 1);  // A single rank's numbers are not enough.
}

void expect_format(WireFormat format, const FormatError& expected) {
  const FormatError error = format_error(format);
  EXPECT_EQ(error.block, expected.block) << format;
  EXPECT_EQ(error.greatest, expected.greatest) << format;
  EXPECT_EQ(error.relative, expected.relative) << format;
  EXPECT_EQ(error.steps, expected.steps) << format;
  EXPECT_EQ(error.absolute, expected.absolute) << format;
}

TEST(FormatError, IsWhatTheDocumentSaysOfEveryFormat) {
  expect_format(WireFormat::kInt8B32, {.block = 32, .greatest = 127, .steps = 0.5});
  expect_format(WireFormat::kInt8B128, {.block = 128, .greatest = 127, .steps = 0.5});
  expect_format(WireFormat::kInt8B256, {.block = 256, .greatest = 127, .steps = 0.5});
  expect_format(WireFormat::kInt6B32, {.block = 32, .greatest = 31, .steps = 0.5});
  expect_format(WireFormat::kInt4B32, {.block = 32, .greatest = 7, .steps = 0.5});
  expect_format(WireFormat::kFp8E4M3B32,
                {.block = 32, .greatest = 448, .relative = std::ldexp(1, -4), .steps = std::ldexp(1, -10)});
  expect_format(WireFormat::kBf16, {.relative = std::ldexp(1, -8), .absolute = std::ldexp(1, -134)});
  expect_format(WireFormat::kFp16, {.relative = std::ldexp(1, -11), .absolute = std::ldexp(1, -25)});
  expect_format(WireFormat::kFp32, {});
}

TEST(FormatError, IsNotThereForANumberThatIsNoFormat) {
  EXPECT_THROW(format_error(static_cast<WireFormat>(99)), std::invalid_argument);
  EXPECT_THROW(wire_error({static_cast<WireFormat>(99)}, at::ones({8}, at::kDouble), node::NodeLayout::flat(2)),
               std::invalid_argument);
}

TEST(WireError, IsNothingWithOneRank) {
  const HopErrors errors = wire_error({WireFormat::kInt4B32}, at::ones({8}, at::kDouble), node::NodeLayout::flat(1));
  EXPECT_EQ(errors.first.sum().item<double>(), 0);
  EXPECT_EQ(errors.second.sum().item<double>(), 0);
}

}  // namespace
}  // namespace narrowcast::hooks
