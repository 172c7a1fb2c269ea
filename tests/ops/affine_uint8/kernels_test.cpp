// The kernels, compared with PyTorch's operators on every instruction set.
#include "ops/cpu/affine_uint8/affine_uint8_kernels.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "tests/ops/affine_uint8/reference.h"
#include "tests/ops/codec/instruction_sets.h"

namespace narrowcast::cpu {
namespace {

using test::dequantize_backend;
using test::instruction_sets;
using test::kSizes;
using test::observe;
using test::quantize_backend;
using test::same_bits;
using test::UseInstructionSet;

template <class T>
class AffineUint8Kernels : public ::testing::Test {
 protected:
  static constexpr at::ScalarType kDtype = c10::CppTypeToScalarType<T>::value;

 private:
  test::UseThreads one_{1};
};

using ElementTypes = ::testing::Types<float, double, c10::BFloat16, c10::Half>;
TYPED_TEST_SUITE(AffineUint8Kernels, ElementTypes);

template <class T>
at::Tensor run_quantize(const at::Tensor& x, AffineQparams qparams) {
  at::Tensor codes = at::empty({x.numel()}, at::kByte);
  quantize(x.const_data_ptr<T>(), x.numel(), qparams, codes.mutable_data_ptr<uint8_t>());
  return codes;
}

at::Tensor scale_of(AffineQparams qparams) { return at::scalar_tensor(qparams.scale, at::kFloat); }
at::Tensor zero_point_of(AffineQparams qparams) { return at::scalar_tensor(qparams.zero_point, at::kInt); }

TYPED_TEST(AffineUint8Kernels, ChooseTheObserversQparams) {
  for (const int64_t size : kSizes) {
    for (const auto& [name, x] : test::inputs(this->kDtype, size)) {
      SCOPED_TRACE(::testing::Message() << name << " of size " << size);
      const auto [scale, zero_point] = observe(x);
      for (const int64_t target : instruction_sets()) {
        const UseInstructionSet use(target);
        const AffineQparams qparams = choose_qparams(x.template const_data_ptr<TypeParam>(), size);
        EXPECT_TRUE(same_bits(scale_of(qparams), scale));
        EXPECT_EQ(qparams.zero_point, zero_point.template item<int32_t>());
      }
    }
  }
}

TYPED_TEST(AffineUint8Kernels, QuantizeAsPyTorchDoes) {
  for (const int64_t size : kSizes) {
    for (const auto& [name, x] : test::inputs(this->kDtype, size)) {
      SCOPED_TRACE(::testing::Message() << name << " of size " << size);
      const auto [scale, zero_point] = observe(x);
      const at::Tensor expected = quantize_backend(x, scale, zero_point);
      const AffineQparams qparams{scale.template item<float>(), zero_point.template item<int32_t>()};
      for (const int64_t target : instruction_sets()) {
        const UseInstructionSet use(target);
        EXPECT_TRUE(same_bits(run_quantize<TypeParam>(x, qparams), expected));
      }
    }
  }
}

// Scales that do not belong to x, including Inf, NaN and subnormal ones.
TYPED_TEST(AffineUint8Kernels, QuantizeAsPyTorchDoesWithForeignQparams) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const auto& [name, x] : test::inputs(this->kDtype, 4099)) {
    for (const float scale : {1.0F, 0.37F, 0x1p-23F, 1e-40F, 3e38F, -0.5F, 0.0F, kInf, std::nanf("0x7fffff")}) {
      for (const int32_t zero_point : {0, 1, 128, 255}) {
        SCOPED_TRACE(::testing::Message() << name << " with scale " << scale << " and zero point " << zero_point);
        const AffineQparams qparams{scale, zero_point};
        const at::Tensor expected = quantize_backend(x, scale_of(qparams), zero_point_of(qparams));
        for (const int64_t target : instruction_sets()) {
          const UseInstructionSet use(target);
          EXPECT_TRUE(same_bits(run_quantize<TypeParam>(x, qparams), expected));
        }
      }
    }
  }
}

TYPED_TEST(AffineUint8Kernels, FusedRowIsChooseThenQuantize) {
  for (const int64_t size : kSizes) {
    for (const auto& [name, x] : test::inputs(this->kDtype, size)) {
      SCOPED_TRACE(::testing::Message() << name << " of size " << size);
      const auto [scale, zero_point] = observe(x);
      const at::Tensor expected = quantize_backend(x, scale, zero_point);
      for (const int64_t target : instruction_sets()) {
        const UseInstructionSet use(target);
        at::Tensor codes = at::empty({size}, at::kByte);
        const AffineQparams qparams = choose_qparams_and_quantize(x.template const_data_ptr<TypeParam>(), size,
                                                                  codes.mutable_data_ptr<uint8_t>());
        EXPECT_TRUE(same_bits(scale_of(qparams), scale));
        EXPECT_EQ(qparams.zero_point, zero_point.template item<int32_t>());
        EXPECT_TRUE(same_bits(codes, expected));
      }
    }
  }
}

// Random codes of all ranks. With some of the scales the mean overflows or is subnormal in the 16-bit types.
struct Encoded {
  Encoded(int64_t ranks, int64_t size) : codes(at::randint(0, 256, {ranks, size}, at::kByte)) {
    const std::vector<float> scales{0x1.110p-8F, 3e-7F, 1.7F, 300, 1e-40F, 2e36F};
    for (int64_t r = 0; r < ranks; ++r) {
      qparams.push_back({scales[static_cast<size_t>(size + r) % scales.size()], static_cast<int32_t>(r * 51 % 256)});
      pointers.push_back(codes[r].const_data_ptr<uint8_t>());
    }
  }
  at::Tensor codes;
  std::vector<AffineQparams> qparams;
  std::vector<const uint8_t*> pointers;
};

at::Tensor mean_as_the_reference_hook(const Encoded& encoded) {
  at::Tensor sum = at::zeros({encoded.codes.size(1)}, at::kFloat);
  for (int64_t r = 0; r < encoded.codes.size(0); ++r) {
    const AffineQparams qparams = encoded.qparams[static_cast<size_t>(r)];
    sum += dequantize_backend(encoded.codes[r], scale_of(qparams), zero_point_of(qparams));
  }
  return sum / encoded.codes.size(0);
}

TYPED_TEST(AffineUint8Kernels, DequantizeMeanSumsInRankOrder) {
  at::manual_seed(0);
  for (const int64_t ranks : {1, 2, 3, 4, 5, 8, 13}) {
    for (const int64_t size : kSizes) {
      SCOPED_TRACE(::testing::Message() << ranks << " ranks, size " << size);
      const Encoded encoded(ranks, size);
      const at::Tensor expected = mean_as_the_reference_hook(encoded).to(this->kDtype);
      for (const int64_t target : instruction_sets()) {
        const UseInstructionSet use(target);
        at::Tensor mean = at::empty({size}, this->kDtype);
        dequantize_mean(encoded.pointers.data(), encoded.qparams.data(), ranks, size,
                        mean.template mutable_data_ptr<TypeParam>());
        EXPECT_TRUE(same_bits(mean, expected));
      }
    }
  }
}

TYPED_TEST(AffineUint8Kernels, DequantizeMeanOfNanAndInfScales) {
  const at::Tensor codes = at::arange(256, at::kByte);
  const std::vector<const uint8_t*> pointers(2, codes.const_data_ptr<uint8_t>());
  for (const float scale : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    const std::vector<AffineQparams> qparams{{scale, 0}, {1, 0}};
    const AffineQparams bad = qparams[0];
    const AffineQparams good = qparams[1];
    const at::Tensor sum = dequantize_backend(codes, scale_of(bad), zero_point_of(bad)) +
                           dequantize_backend(codes, scale_of(good), zero_point_of(good));
    for (const int64_t target : instruction_sets()) {
      const UseInstructionSet use(target);
      at::Tensor mean = at::empty({256}, this->kDtype);
      dequantize_mean(pointers.data(), qparams.data(), 2, 256, mean.template mutable_data_ptr<TypeParam>());
      EXPECT_TRUE(same_bits(mean, (sum / 2).to(this->kDtype)));
    }
  }
}

TEST(AffineUint8KernelsOnFloats, DequantizeEqualsPyTorch) {
  const test::UseThreads one(1);
  for (const int64_t size : kSizes) {
    const Encoded encoded(6, size);
    for (int64_t r = 0; r < 6; ++r) {
      const AffineQparams qparams = encoded.qparams[static_cast<size_t>(r)];
      const at::Tensor expected = dequantize_backend(encoded.codes[r], scale_of(qparams), zero_point_of(qparams));
      for (const int64_t target : instruction_sets()) {
        const UseInstructionSet use(target);
        at::Tensor out = at::empty({size}, at::kFloat);
        dequantize(encoded.pointers[static_cast<size_t>(r)], size, qparams, out.mutable_data_ptr<float>());
        EXPECT_TRUE(same_bits(out, expected));
      }
    }
  }
}

// Every bit pattern of the 16-bit types, through the vector paths of both directions.
template <class T>
void every_pattern_quantizes() {
  const at::Tensor bits = at::arange(-32768, 32768, at::kInt).to(at::kShort);
  const at::Tensor x = bits.view(c10::CppTypeToScalarType<T>::value);
  for (const float scale : {1.0F, 0.01F, 0x1p-23F, 1000.0F, 0.3333F}) {
    const AffineQparams qparams{scale, 100};
    const at::Tensor expected = quantize_backend(x, scale_of(qparams), zero_point_of(qparams));
    for (const int64_t target : instruction_sets()) {
      const UseInstructionSet use(target);
      EXPECT_TRUE(same_bits(run_quantize<T>(x, qparams), expected)) << "scale " << scale;
    }
  }
}

TEST(AffineUint8KernelsOnAllPatterns, BFloat16) { every_pattern_quantizes<c10::BFloat16>(); }
TEST(AffineUint8KernelsOnAllPatterns, Half) { every_pattern_quantizes<c10::Half>(); }

// One NaN at each position of a few vectors and of the remainder behind them.
TYPED_TEST(AffineUint8Kernels, FindRangeSeesNanAnywhere) {
  constexpr int64_t kSize = 150;
  for (const bool negative : {false, true}) {
    for (int64_t at = 0; at < kSize; ++at) {
      at::Tensor x = at::randn({kSize}, this->kDtype);
      x[at] = std::copysign(std::numeric_limits<double>::quiet_NaN(), negative ? -1.0 : 1.0);
      for (const int64_t target : instruction_sets()) {
        const UseInstructionSet use(target);
        const AffineRange range = find_range(x.template const_data_ptr<TypeParam>(), kSize);
        EXPECT_TRUE(range.min != range.min || range.max != range.max) << "at " << at;
      }
    }
  }
}

TYPED_TEST(AffineUint8Kernels, RangesOfPartsJoin) {
  const at::Tensor x = at::randn({1003}, this->kDtype);
  const auto* data = x.template const_data_ptr<TypeParam>();
  const AffineRange joined = codec::merge(find_range(data, 600), find_range(data + 600, 403));
  EXPECT_EQ(joined.min, x.min().template item<float>());
  EXPECT_EQ(joined.max, x.max().template item<float>());
}

}  // namespace
}  // namespace narrowcast::cpu
