// The kernels of the sparse formats, run on the CPU: their bytes, floats and residuals, compared with the plain codec.
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/support/cuda_on_host/cuda_on_host.h"

// Must follow cuda_on_host.h, because they are CUDA C++.
#include "ops/cuda/wire/sparse_kernels.cuh"
#include "tests/ops/wire_format/cuda/placed_array.h"
#include "tests/ops/wire_format/wire_inputs.h"

namespace narrowcast::cuda_on_host {
namespace {

using cuda::FloatType;
using test::Bytes;
using test::Floats;
using test::same_numbers;

constexpr int64_t kSizes[] = {1, 63, 1000, 4095, 4096, 4097, 9000};

void sparse_encode(const cuda::SparseEncodeArguments& arguments, Turns turns) {
  run_kernel({.blocks = cuda::sparse_blocks(arguments.n), .threads = cuda::kSparseThreads, .turns = turns},
             [&] { cuda::sparse_encode_kernel(arguments); });
}

void sparse_average(const cuda::SparseAverageArguments& arguments, Turns turns) {
  run_kernel({.blocks = cuda::sparse_blocks(arguments.parts.n), .threads = cuda::kSparseThreads, .turns = turns},
             [&] { cuda::sparse_average_kernel(arguments); });
}

Floats drawn(int64_t n, int64_t seed) {
  at::manual_seed(seed);
  const at::Tensor x = at::randn({n});
  return {x.const_data_ptr<float>(), x.const_data_ptr<float>() + n};
}

class CudaSparse : public ::testing::TestWithParam<WireFormat> {
 protected:
  const WireFormat format_ = GetParam();
  const int per_mille_ = codec::wire::kept_per_mille(format_);

  Bytes plain(const Floats& x) const { return test::plain_encode(format_, x, test::kNearest); }

  // The message, with gaps before it and behind it that must not change.
  template <class T>
  Bytes encode(FloatType type, const std::vector<T>& x, Turns turns) const {
    const auto n = static_cast<int64_t>(x.size());
    test::PlacedArray<T> placed(x, static_cast<int64_t>(sizeof(T)));
    test::PlacedArray<uint8_t> message(test::size_of(format_, n), 3);
    sparse_encode({.per_mille = per_mille_, .type = type, .x = placed.data(), .n = n, .message = message.data()},
                  turns);
    return message.values();
  }

  template <class T>
  void expect_encodes_as_float32(FloatType type) const {
    const Floats x = drawn(5000, 1);
    const std::vector<T> narrow(x.begin(), x.end());
    EXPECT_EQ(encode(type, narrow, Turns::kForward), plain(Floats(narrow.begin(), narrow.end())));
  }
};

TEST_P(CudaSparse, EncodesTheBytesOfThePlainCodec) {
  int64_t calls = 0;
  for (const int64_t size : kSizes) {
    for (const auto& [name, x] : test::wire_inputs(size)) {
      SCOPED_TRACE(::testing::Message() << name << " of size " << size);
      const Turns turns = ++calls % 2 == 0 ? Turns::kForward : Turns::kBackward;
      ASSERT_EQ(encode(FloatType::kFloat32, x, turns), plain(x));
    }
  }
}

TEST_P(CudaSparse, EncodesManyEqualMagnitudes) {
  Floats x(5000, 1);
  for (size_t i = 0; i < x.size(); i += 3) x[i] = -1;
  x[4000] = 2;
  for (const Turns turns : {Turns::kForward, Turns::kBackward}) {
    EXPECT_EQ(encode(FloatType::kFloat32, x, turns), plain(x));
  }
}

TEST_P(CudaSparse, EncodesTheOtherTypesAsFloat32) {
  expect_encodes_as_float32<double>(FloatType::kFloat64);
  expect_encodes_as_float32<c10::BFloat16>(FloatType::kBfloat16);
  expect_encodes_as_float32<c10::Half>(FloatType::kFloat16);
}

TEST_P(CudaSparse, KeepsTheErrorAsTheResidual) {
  const int64_t n = 9000;
  Floats x = drawn(n, 1);
  x[5000] = std::numeric_limits<float>::infinity();  // In the second block, whose residuals do not change.
  const Floats before = drawn(n, 2);
  Floats sum = x;
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += before[i];
  const Bytes expected = plain(sum);
  const Floats decoded = test::plain_decode(format_, expected, n);
  for (const Turns turns : {Turns::kForward, Turns::kBackward}) {
    Floats residual = before;
    Floats spent(static_cast<size_t>(n), 7);
    Bytes message(expected.size());
    sparse_encode({.per_mille = per_mille_,
                   .x = x.data(),
                   .n = n,
                   .residual = residual.data(),
                   .spent = spent.data(),
                   .message = message.data()},
                  turns);
    EXPECT_EQ(message, expected);
    for (size_t i = 0; i < sum.size(); ++i) {
      const bool is_lost = i / 4096 == 1;
      ASSERT_EQ(residual[i], is_lost ? before[i] : sum[i] - decoded[i]) << i;
      ASSERT_EQ(spent[i], is_lost ? 7 : 0) << i;
    }
  }
}

TEST_P(CudaSparse, AveragesInRankOrder) {
  const int64_t n = 5000;
  for (const int64_t ranks : {1, 3, 8, 11}) {
    for (const int64_t own_rank : {ranks, ranks - 1, int64_t{0}}) {
      SCOPED_TRACE(::testing::Message() << ranks << " ranks, own " << own_rank);
      const int64_t stride = test::size_of(format_, n) + 5;
      Bytes messages(static_cast<size_t>(ranks * stride));
      Floats own = drawn(n, 100);
      Floats expected(static_cast<size_t>(n), 0);
      std::vector<const uint8_t*> by_rank;
      for (int64_t rank = 0; rank < ranks; ++rank) {
        const Bytes message = plain(drawn(n, rank));
        std::copy(message.begin(), message.end(), messages.begin() + rank * stride);
        by_rank.push_back(rank == own_rank ? nullptr : messages.data() + rank * stride);
        const Floats part = rank == own_rank ? own : test::plain_decode(format_, message, n);
        for (size_t i = 0; i < expected.size(); ++i) expected[i] += part[i];
      }
      for (float& x : expected) x /= static_cast<float>(ranks);
      cuda::RankParts parts{.own = own.data(), .n = n};
      cuda::place_messages(by_rank, parts);
      Floats mean(static_cast<size_t>(n));
      const Turns turns = ranks % 2 == 0 ? Turns::kForward : Turns::kBackward;
      sparse_average({.per_mille = per_mille_, .parts = parts, .mean = mean.data()}, turns);
      EXPECT_TRUE(test::same(mean, expected));
      sparse_average({.per_mille = per_mille_, .parts = parts, .mean = own.data()}, turns);
      EXPECT_TRUE(test::same(own, expected)) << "in place";
    }
  }
}

TEST_P(CudaSparse, ReadsAnyBytes) {
  at::manual_seed(3);
  const int64_t n = 4500;
  for (int round = 0; round < 8; ++round) {
    Bytes bytes = plain(drawn(n, round));
    for (int change = 0; change < round; ++change) {
      bytes[static_cast<size_t>(at::randint(0, static_cast<int64_t>(bytes.size()), {1}).item<int64_t>())] ^= 0x41;
    }
    Floats decoded(static_cast<size_t>(n));
    cuda::RankParts parts{.n = n};
    cuda::place_messages({bytes.data()}, parts);
    sparse_average({.per_mille = per_mille_, .parts = parts, .mean = decoded.data()}, Turns::kForward);
    EXPECT_TRUE(same_numbers(decoded, test::plain_decode(format_, bytes, n))) << round;
  }
}

INSTANTIATE_TEST_SUITE_P(All, CudaSparse, ::testing::ValuesIn(test::sparse_formats()),
                         [](const auto& info) { return std::string(codec::wire::name_of(info.param)); });

}  // namespace
}  // namespace narrowcast::cuda_on_host
