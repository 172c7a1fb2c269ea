// Ranges of arrays in the variable formats, in any order of their grains: the kernels' messages with error feedback,
// and the mean over ranks. They are compared with the CPU's range codec.
#include <gtest/gtest.h>

#include <array>
#include <random>
#include <string>

#include "ops/collectives/all_reduce/array/element_order.h"
#include "ops/collectives/all_reduce/codec/wire_codec.h"
#include "ops/cpu/wire/wire_kernels.h"
#include "ops/cuda/launch/tensor_arguments.h"
#include "tests/ops/wire_format/cuda/placed_array.h"
#include "tests/ops/wire_format/cuda/variable_kernels_on_host.h"
#include "tests/ops/wire_format/variable_inputs.h"

namespace narrowcast::cuda_on_host {
namespace {

using collectives::ElementOrder;
using collectives::ElementRange;
using test::Bytes;
using test::Floats;
using test::same_numbers;

// An array in the order in which it is sent, a range of it, and the typical magnitude of its numbers.
struct Case {
  int64_t numel;
  ElementRange range;
  at::ScalarType dtype = at::kFloat;
  float size = 1;
};

const std::vector<Case> kCases{{700, {0, 700}},
                               {9300, {0, 9300}},
                               {3000, {0, 3000}, at::kFloat, 0x1p-102F},  // Around the least step.
                               {9300, {2048, 5120}, at::kBFloat16},
                               {9300, {8192, 1108}, at::kDouble},
                               {5120, {1024, 3072}, at::kHalf}};

// Blocks of different magnitude; some are faint, some have numbers of one sign only. With a NaN the message is NaN.
Floats numbers(int64_t n, uint64_t seed, float size) {
  constexpr std::array kExponents{0, 5, -30, 2, -9, 7, 1, -75, -4, 6, -17};
  std::mt19937 engine(static_cast<uint32_t>(seed));
  std::normal_distribution<float> normal;
  return test::generate(n, [&](int64_t i) {
    const int64_t block = i / codec::wire::kVariableBlock;
    const float number = normal(engine) * std::ldexp(size, kExponents[static_cast<size_t>(block) % kExponents.size()]);
    if (block % 4 < 2) return number;
    return block % 4 == 2 ? std::fabs(number) : -std::fabs(number);
  });
}

class CudaVariableRange : public ::testing::TestWithParam<WireFormat> {
 protected:
  const WireFormat format_ = GetParam();
  const int bits_ = static_cast<int>(codec::wire::code_bits(format_));

  cpu::GrainOrder order(const Case& c) const { return ElementOrder::of(format_, c.numel).grain_order(); }

  cuda::VariablePlaces places(const Case& c) const {
    const int64_t grains = c.numel / cpu::kWireGrain;
    return {c.range.begin / cpu::kWireGrain, grains,
            grains > 1 ? order(c).element(cpu::kWireGrain) / cpu::kWireGrain : 1};
  }

  // The messages of all ranks but `own_rank`, one after the other.
  Bytes messages(const Case& c, int64_t ranks) const {
    Bytes all;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      Floats x = numbers(c.range.numel, static_cast<uint64_t>(10 + rank), c.size);
      if (rank == 2) x[5] = std::nanf("");
      Bytes message = test::plain_encode(format_, x, test::kNearest);
      // Blocks so wide that the message ends before their tiles do; the next message is complete.
      constexpr uint8_t kWidest = codec::wire::kMostWidth - codec::wire::kMostOwnWidth;
      if (rank == 3) std::fill_n(message.begin() + codec::wire::kStepBytes, c.range.numel / 32, kWidest);
      all.insert(all.end(), message.begin(), message.end());
    }
    return all;
  }

  void expect_average(const Case& c, int64_t ranks, int64_t own_rank, Turns turns) const {
    SCOPED_TRACE(::testing::Message() << c.numel << " " << c.dtype << ", from " << c.range.begin << ", " << ranks
                                      << " ranks, own " << own_rank);
    Bytes bytes = messages(c, ranks);
    test::PlacedArray<uint8_t> placed(bytes, own_rank + 3);
    collectives::RankMessages pointers;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const int64_t byte = rank * test::size_of(format_, c.range.numel);
      pointers.push_back(rank == own_rank ? nullptr : placed.data() + byte);
    }
    for (const Reduction reduction : {Reduction::kMean, Reduction::kSum}) {
      const at::Tensor expected = at::tensor(numbers(c.numel, 1, c.size)).to(c.dtype);
      const at::Tensor reduced = expected.clone();
      collectives::make_wire_codec(format_, at::kCPU)
          ->reduce(pointers, {expected, c.range, nullptr, order(c)}, reduction);
      cuda::RankParts parts{.type = cuda::float_type_of(c.dtype),
                            .own = reduced.const_data_ptr(),
                            .n = c.range.numel,
                            .reduction = reduction};
      cuda::place_messages(pointers, parts);
      variable_average({.bits_per_element = bits_,
                        .parts = parts,
                        .own_places = places(c),
                        .type = parts.type,
                        .mean = reduced.mutable_data_ptr(),
                        .mean_places = places(c)},
                       2, turns);
      EXPECT_TRUE(same_numbers(to_floats(reduced), to_floats(expected)));
    }
  }

  void expect_sent_mean(const Case& c, bool has_nan) const {
    SCOPED_TRACE(::testing::Message() << c.numel << " " << c.dtype << ", from " << c.range.begin
                                      << (has_nan ? ", NaN" : ""));
    const int64_t n = c.range.numel;
    const Bytes bytes = messages(c, 2);
    const collectives::RankMessages pointers{bytes.data(), nullptr, bytes.data() + test::size_of(format_, n)};
    const at::Tensor array = at::tensor(numbers(c.numel, 1, c.size)).to(c.dtype);
    if (has_nan) array[order(c).element(c.range.begin) + 3].fill_(std::nanf(""));
    Floats own_residual = numbers(n, 4, c.size);
    Floats mean_residual = numbers(n, 5, c.size);
    cuda::RankParts parts{.type = cuda::float_type_of(c.dtype), .own = array.const_data_ptr(), .n = n};
    cuda::place_messages(pointers, parts);
    test::PlacedArray<float> own(own_residual, 0);
    parts.own_residual = own.data();
    test::PlacedArray<float> sums(n, 8);
    variable_average({.bits_per_element = bits_, .parts = parts, .own_places = places(c), .mean = sums.data()}, 2,
                     Turns::kForward);
    test::PlacedArray<float> residual(mean_residual, 12);
    test::PlacedArray<uint8_t> message(test::size_of(format_, n), 1);
    variable_encode({.bits_per_element = bits_,
                     .x = sums.data(),
                     .n = n,
                     .residual = residual.data(),
                     .spent = own.data(),
                     .rounding = test::kStochastic,
                     .message = message.data()},
                    2, Turns::kForward);
    Bytes expected(static_cast<size_t>(test::size_of(format_, n)));
    collectives::make_wire_codec(format_, at::kCPU)
        ->average_and_encode(test::kStochastic, pointers, {array, c.range, own_residual.data(), order(c)},
                             mean_residual.data(), expected.data());
    EXPECT_EQ(message.values(), expected);
    EXPECT_EQ(own.values(), own_residual);
    EXPECT_EQ(own_residual, has_nan ? numbers(n, 4, c.size) : Floats(static_cast<size_t>(n)));
    EXPECT_TRUE(same_numbers(residual.values(), mean_residual));
  }

  static Floats to_floats(const at::Tensor& array) {
    const at::Tensor floats = array.to(at::kFloat);
    return {floats.const_data_ptr<float>(), floats.const_data_ptr<float>() + floats.numel()};
  }
};

TEST_P(CudaVariableRange, IsWrittenWithItsResidual) {
  for (const Case& c : kCases) {
    for (const bool has_nan : {false, true}) {
      SCOPED_TRACE(::testing::Message() << c.numel << " " << c.dtype << ", from " << c.range.begin);
      const at::Tensor array = at::tensor(numbers(c.numel, 2, c.size)).to(c.dtype);
      if (has_nan) array[order(c).element(c.range.begin) + 3].fill_(std::nanf(""));
      Floats expected_residual = numbers(c.range.numel, 3, c.size);
      test::PlacedArray<float> residual(expected_residual, 4);
      Bytes expected(static_cast<size_t>(test::size_of(format_, c.range.numel)));
      collectives::make_wire_codec(format_, at::kCPU)
          ->encode(test::kStochastic, {array, c.range, expected_residual.data(), order(c)}, expected.data());
      test::PlacedArray<uint8_t> message(test::size_of(format_, c.range.numel), 2);
      variable_encode({.bits_per_element = bits_,
                       .type = cuda::float_type_of(c.dtype),
                       .x = array.const_data_ptr(),
                       .places = places(c),
                       .n = c.range.numel,
                       .residual = residual.data(),
                       .rounding = test::kStochastic,
                       .message = message.data()},
                      2, has_nan ? Turns::kBackward : Turns::kForward);
      EXPECT_EQ(message.values(), expected);
      EXPECT_TRUE(same_numbers(residual.values(), expected_residual));
    }
  }
}

TEST_P(CudaVariableRange, BecomesTheMeanInRankOrder) {
  for (const Case& c : kCases) {
    ASSERT_NO_FATAL_FAILURE(expect_average(c, 2, 1, Turns::kForward));
    ASSERT_NO_FATAL_FAILURE(expect_average(c, 3, 0, Turns::kBackward));
    ASSERT_NO_FATAL_FAILURE(expect_average(c, 5, 5, Turns::kForward));
  }
}

// The message of a second hop: the mean is computed in float32, in the order in which it is sent, and then encoded.
// Residuals stay unchanged where that message is NaN.
TEST_P(CudaVariableRange, BecomesAMeanThatIsSent) {
  for (const Case& c : kCases) {
    for (const bool has_nan : {false, true}) ASSERT_NO_FATAL_FAILURE(expect_sent_mean(c, has_nan));
  }
}

INSTANTIATE_TEST_SUITE_P(All, CudaVariableRange,
                         ::testing::Values(WireFormat::kVar6, WireFormat::kVar5, WireFormat::kVar4, WireFormat::kVar3),
                         [](const auto& info) { return std::string(codec::wire::name_of(info.param)); });

}  // namespace
}  // namespace narrowcast::cuda_on_host
