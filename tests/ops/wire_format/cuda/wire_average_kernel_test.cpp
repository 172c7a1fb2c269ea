// The averaging kernels and error feedback, compared with the CPU's range codec.
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "ops/collectives/all_reduce/codec/wire_codec.h"
#include "ops/cuda/launch/tensor_arguments.h"
#include "tests/ops/wire_format/cuda/kernels_on_host.h"
#include "tests/ops/wire_format/cuda/placed_array.h"
#include "tests/ops/wire_format/wire_inputs.h"
#include "tests/support/sanitized.h"

namespace narrowcast::cuda_on_host {
namespace {

using codec::wire::Rounding;
using test::Bytes;
using test::Floats;
using test::same_numbers;

Floats random_floats(int64_t n, uint64_t seed) {
  at::manual_seed(seed);
  const at::Tensor x = at::randn({n});
  return {x.const_data_ptr<float>(), x.const_data_ptr<float>() + n};
}

struct Case {
  int64_t n;
  int64_t ranks;
  int64_t own_rank;  // -1 for none.
  at::ScalarType dtype = at::kFloat;
};

// The ranks' contributions: messages at odd addresses, and the own part as an array with a residual.
class Contributions {
 public:
  Contributions(WireFormat format, const Case& c)
      : own(at::tensor(random_floats(c.n, 99)).to(c.dtype)),
        own_residual(random_floats(c.n, 98)),
        mean_residual(random_floats(c.n, 97)),
        messages_(c.ranks * (test::size_of(format, c.n) + kGap), 0) {
    uint8_t* message = messages_.data();
    for (int64_t rank = 0; rank < c.ranks; ++rank) {
      Floats x = random_floats(c.n, static_cast<uint64_t>(rank));
      if (c.n > 100 && rank == 1) x[60] = std::nanf("");
      const Bytes bytes = test::plain_encode(format, x, test::kNearest);
      std::copy(bytes.begin(), bytes.end(), message);
      pointers.push_back(rank == c.own_rank ? nullptr : message);
      // There may or may not be a place for the message of the own rank.
      message += rank == c.own_rank && c.n % 2 == 0 ? 0 : test::size_of(format, c.n) + kGap;
    }
  }

  cuda::RankParts parts(const at::Tensor& array, float* residual) const {
    cuda::RankParts result{.type = cuda::float_type_of(array.scalar_type()),
                           .own = array.const_data_ptr(),
                           .own_residual = residual,
                           .n = array.numel()};
    cuda::place_messages(pointers, result);
    return result;
  }

  collectives::RankMessages pointers;
  at::Tensor own;
  Floats own_residual;
  Floats mean_residual;

 private:
  static constexpr int64_t kGap = 5;
  test::PlacedArray<uint8_t> messages_;
};

class CudaWireAverage : public ::testing::TestWithParam<WireFormat> {
 protected:
  const WireFormat format_ = GetParam();

  template <class Body>
  void for_each_case(const Body& body) {
    for (const int64_t n : test::kTileSizes) {
      for (const int64_t ranks : {1, 2, 3, 4, 5}) {
        for (int64_t own_rank = -1; own_rank < ranks; ++own_rank) {
          if (n > 1000 && ranks != 3) continue;
          if (test::kSanitized && ranks != 1 && ranks != 3) continue;
          expect(body, {n, ranks, own_rank});
        }
      }
    }
    for (const at::ScalarType dtype : {at::kDouble, at::kBFloat16, at::kHalf}) expect(body, {2100, 3, 1, dtype});
    expect(body, {9000, 16, 3});
  }

  template <class Body>
  void expect(const Body& body, const Case& c) {
    SCOPED_TRACE(::testing::Message() << c.n << " " << c.dtype << " of " << c.ranks << " ranks, own " << c.own_rank);
    body(Contributions(format_, c), (c.n + c.ranks) % 2 == 0 ? Turns::kForward : Turns::kBackward);
  }
};

TEST_P(CudaWireAverage, SumsInRankOrderAndDivides) {
  for_each_case([&](const Contributions& all, Turns turns) {
    const at::Tensor expected = all.own.clone();
    collectives::make_wire_codec(format_, at::kCPU)->average(all.pointers, {expected, {0, expected.numel()}});
    const at::Tensor mean = all.own.clone();
    wire_average(format_, {.parts = all.parts(mean, nullptr), .mean = mean.mutable_data_ptr()}, turns);
    EXPECT_TRUE(test::same_bits(mean, expected));
  });
}

TEST_P(CudaWireAverage, OrDoesNotDivide) {
  for_each_case([&](const Contributions& all, Turns turns) {
    const at::Tensor expected = all.own.clone();
    collectives::make_wire_codec(format_, at::kCPU)
        ->reduce(all.pointers, {expected, {0, expected.numel()}}, Reduction::kSum);
    const at::Tensor sum = all.own.clone();
    cuda::RankParts parts = all.parts(sum, nullptr);
    parts.reduction = Reduction::kSum;
    wire_average(format_, {.parts = parts, .mean = sum.mutable_data_ptr()}, turns);
    EXPECT_TRUE(test::same_bits(sum, expected));
  });
}

TEST_P(CudaWireAverage, KeepsTheSignOfZeros) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    Contributions all(format_, {200, 1, 0, dtype});
    all.own = at::tensor({0.0F, -0.0F}).repeat({100}).to(dtype);
    const at::Tensor on_cpu = all.own.clone();
    collectives::make_wire_codec(format_, at::kCPU)->average(all.pointers, {on_cpu, {0, on_cpu.numel()}});
    EXPECT_TRUE(test::same_bits(on_cpu, all.own)) << dtype;
    const at::Tensor mean = all.own.clone();
    wire_average(format_, {.parts = all.parts(mean, nullptr), .mean = mean.mutable_data_ptr()}, Turns::kForward);
    EXPECT_TRUE(test::same_bits(mean, all.own)) << dtype;
  }
}

// Includes numbers whose products with their scales overflow.
TEST_P(CudaWireAverage, SumsHostileMessagesAsTheCpu) {
  for (const auto& [name, x] : test::wire_inputs(1000)) {
    SCOPED_TRACE(name);
    Floats negated = x;
    for (float& number : negated) number = -number;
    Bytes messages;
    for (const Floats& part : {x, Floats(x.rbegin(), x.rend()), negated}) {
      const Bytes message = test::plain_encode(format_, part, test::kNearest);
      messages.insert(messages.end(), message.begin(), message.end());
    }
    collectives::RankMessages pointers;
    for (int64_t rank = 0; rank < 3; ++rank) pointers.push_back(messages.data() + rank * test::size_of(format_, 1000));
    const at::Tensor expected = at::zeros({1000});
    collectives::make_wire_codec(format_, at::kCPU)->average(pointers, {expected, {0, 1000}});
    const at::Tensor mean = at::zeros({1000});
    cuda::RankParts parts{.n = 1000};
    cuda::place_messages(pointers, parts);
    wire_average(format_, {.parts = parts, .mean = mean.mutable_data_ptr()}, Turns::kBackward);
    EXPECT_TRUE(test::same_bits(mean, expected));
  }
}

TEST_P(CudaWireAverage, EncodesTheMean) {
  for (const Rounding& rounding : {test::kNearest, test::kStochastic}) {
    for_each_case([&](const Contributions& all, Turns turns) {
      const int64_t n = all.own.numel();
      Bytes expected(static_cast<size_t>(test::size_of(format_, n)));
      collectives::make_wire_codec(format_, at::kCPU)
          ->average_and_encode(rounding, all.pointers, {all.own, {0, n}}, nullptr, expected.data());
      test::PlacedArray<uint8_t> message(test::size_of(format_, n), 6);
      wire_average_encode(
          format_, {.parts = all.parts(all.own, nullptr), .rounding = rounding, .message = message.data()}, turns);
      EXPECT_EQ(message.values(), expected);
    });
  }
}

TEST_P(CudaWireAverage, FeedsBackWhatItsMessageLacks) {
  for_each_case([&](const Contributions& all, Turns turns) {
    const int64_t n = all.own.numel();
    Bytes expected(static_cast<size_t>(test::size_of(format_, n)));
    Floats expected_own = all.own_residual;
    Floats expected_mean = all.mean_residual;
    collectives::make_wire_codec(format_, at::kCPU)
        ->average_and_encode(test::kNearest, all.pointers, {all.own, {0, n}, expected_own.data()}, expected_mean.data(),
                             expected.data());
    test::PlacedArray<uint8_t> message(test::size_of(format_, n), 0);
    Floats own_residual = all.own_residual;
    test::PlacedArray<float> mean_residual(all.mean_residual, 0);
    wire_average_encode(format_,
                        {.parts = all.parts(all.own, own_residual.data()),
                         .mean_residual = mean_residual.data(),
                         .rounding = test::kNearest,
                         .message = message.data()},
                        turns);
    EXPECT_EQ(message.values(), expected);
    EXPECT_TRUE(same_numbers(mean_residual.values(), expected_mean));
    const bool has_own = std::find(all.pointers.begin(), all.pointers.end(), nullptr) != all.pointers.end();
    EXPECT_TRUE(same_numbers(own_residual, has_own ? expected_own : all.own_residual));
  });
}

TEST_P(CudaWireAverage, FeedsBackWhatAnArraysMessageLacks) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    for (const auto& [name, x] : test::wire_inputs(1000)) {
      SCOPED_TRACE(::testing::Message() << name << " " << dtype);
      const at::Tensor array = at::tensor(x).to(dtype);
      Floats expected_residual = random_floats(1000, 5);
      test::PlacedArray<float> residual(expected_residual, 4);
      Bytes expected(static_cast<size_t>(test::size_of(format_, 1000)));
      collectives::make_wire_codec(format_, at::kCPU)
          ->encode(test::kStochastic, {array, {0, 1000}, expected_residual.data()}, expected.data());
      test::PlacedArray<uint8_t> message(test::size_of(format_, 1000), 2);
      wire_encode(format_,
                  {.type = cuda::float_type_of(dtype),
                   .x = array.const_data_ptr(),
                   .n = 1000,
                   .residual = residual.data(),
                   .rounding = test::kStochastic,
                   .message = message.data()},
                  Turns::kForward);
      EXPECT_EQ(message.values(), expected);
      EXPECT_TRUE(same_numbers(residual.values(), expected_residual));
    }
  }
}

TEST(CudaWireRanks, AreAsManyAsThereAre) {
  const Contributions all(WireFormat::kInt8B32, {.n = 70, .ranks = 1000, .own_rank = 700});
  const at::Tensor expected = all.own.clone();
  collectives::make_wire_codec(WireFormat::kInt8B32, at::kCPU)->average(all.pointers, {expected, {0, 70}});
  const at::Tensor mean = all.own.clone();
  wire_average(WireFormat::kInt8B32, {.parts = all.parts(mean, nullptr), .mean = mean.mutable_data_ptr()},
               Turns::kForward);
  EXPECT_TRUE(test::same_bits(mean, expected));
  EXPECT_THROW(cuda::check_parts({.ranks = 0}), std::invalid_argument);
}

TEST(CudaWireRanks, HaveTheirMessagesEquallyFarFromEachOther) {
  const Bytes bytes(100);
  cuda::RankParts parts;
  EXPECT_NO_THROW(cuda::place_messages({bytes.data(), nullptr, bytes.data() + 30, bytes.data() + 40}, parts));
  EXPECT_EQ(parts.message(3), bytes.data() + 40);
  EXPECT_NO_THROW(cuda::place_messages({nullptr}, parts));
  EXPECT_THROW(cuda::place_messages({bytes.data(), bytes.data() + 10, bytes.data() + 30}, parts),
               std::invalid_argument);
}

INSTANTIATE_TEST_SUITE_P(All, CudaWireAverage, ::testing::ValuesIn(test::fixed_formats()),
                         [](const auto& info) { return std::string(codec::wire::name_of(info.param)); });

}  // namespace
}  // namespace narrowcast::cuda_on_host
