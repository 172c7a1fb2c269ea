// The kernels of FP16 and BFP16, compared with PyTorch's functions on every instruction set.
#include "ops/cpu/quantize_tensor/quantize_tensor_kernels.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "tests/ops/codec/instruction_sets.h"
#include "tests/ops/quantize_tensor/reference.h"
#include "tests/support/sanitized.h"

namespace narrowcast::cpu {
namespace {

using test::encodes_as_upstream;
using test::instruction_sets;
using test::kDQuantTypes;
using test::same_bits;
using test::UseInstructionSet;

template <class T>
at::Tensor run_encode(const at::Tensor& x, DQuantType qtype) {
  at::Tensor q = at::empty_like(x, at::kHalf);
  const EncodeSpan<T> span{x.const_data_ptr<T>(), x.numel(), static_cast<uint16_t*>(q.mutable_data_ptr())};
  qtype == DQuantType::kFp16 ? encode_fp16(span) : encode_bfp16(span);
  return q;
}

at::Tensor run_decode(const at::Tensor& q, DQuantType qtype, std::optional<double> quant_loss) {
  at::Tensor out = at::empty_like(q, at::kFloat);
  const DecodeSpan span{static_cast<const uint16_t*>(q.const_data_ptr()), q.numel(), out.mutable_data_ptr<float>()};
  if (quant_loss) {
    const auto divisor = static_cast<float>(*quant_loss);
    qtype == DQuantType::kFp16 ? decode_fp16(span, divisor) : decode_bfp16(span, divisor);
  } else {
    qtype == DQuantType::kFp16 ? decode_fp16(span) : decode_bfp16(span);
  }
  return out;
}

template <class T>
void expect_encodes(const at::Tensor& x) {
  for (const DQuantType qtype : kDQuantTypes) {
    for (const int64_t target : instruction_sets()) {
      const UseInstructionSet use(target);
      EXPECT_TRUE(encodes_as_upstream(run_encode<T>(x, qtype), x, qtype)) << qtype;
    }
  }
}

template <class T>
class QuantizeTensorKernels : public ::testing::Test {
 protected:
  static constexpr at::ScalarType kDtype = c10::CppTypeToScalarType<T>::value;

 private:
  test::UseThreads one_{1};
};

using ElementTypes = ::testing::Types<float, double, c10::BFloat16, c10::Half>;
TYPED_TEST_SUITE(QuantizeTensorKernels, ElementTypes);

TYPED_TEST(QuantizeTensorKernels, EncodeAsPyTorchDoes) {
  for (const int64_t size : test::kSizes) {
    for (const auto& [name, x] : test::inputs(this->kDtype, size)) {
      SCOPED_TRACE(::testing::Message() << name << " of size " << size);
      expect_encodes<TypeParam>(x);
    }
  }
}

// A NaN at each position of a few vectors and of the remainder behind them.
TYPED_TEST(QuantizeTensorKernels, KeepNanAnywhere) {
  for (int64_t at = 0; at < 150; ++at) {
    at::Tensor x = at::full({150}, static_cast<double>(std::numeric_limits<TypeParam>::max()), this->kDtype);
    x[at] = std::numeric_limits<double>::quiet_NaN();
    expect_encodes<TypeParam>(x);
  }
}

// One million under sanitizers.
TEST(QuantizeTensorKernelsOnBits, EncodeTenMillionRandomPatternsOfFloat32) {
  at::manual_seed(4);
  constexpr int64_t kPerRound = 1'000'000;
  for (int64_t round = 0; round < (test::kSanitized ? 1 : 10); ++round) {
    expect_encodes<float>(at::randint(0, 256, {kPerRound * 4}, at::kByte).view(at::kFloat));
  }
}

// The tie lies between two neighbours of either format; also its float32 neighbours are tested.
TEST(QuantizeTensorKernelsOnBits, EncodeEveryTie) {
  for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16}) {
    const at::Tensor values = test::every_pattern(dtype).to(at::kFloat);
    const at::Tensor ties = (values.slice(0, 1) + values.slice(0, 0, -1)) / 2;
    for (const int64_t step : {-1, 0, 1}) {
      expect_encodes<float>((ties.view(at::kInt) + step).view(at::kFloat));
    }
  }
}

TEST(QuantizeTensorKernelsOnBits, EncodeEveryPatternOfTheNarrowTypes) {
  expect_encodes<c10::Half>(test::every_pattern(at::kHalf));
  expect_encodes<c10::BFloat16>(test::every_pattern(at::kBFloat16));
}

TEST(QuantizeTensorKernelsOnBits, EncodeTheSameNanOnEveryInstructionSet) {
  const at::Tensor x = test::every_pattern(at::kBFloat16).to(at::kFloat);
  for (const DQuantType qtype : kDQuantTypes) {
    const UseInstructionSet any(HWY_STATIC_TARGET);
    const at::Tensor expected = test::code_bits(run_encode<float>(x, qtype));
    for (const int64_t target : instruction_sets()) {
      const UseInstructionSet use(target);
      EXPECT_TRUE(same_bits(test::code_bits(run_encode<float>(x, qtype)), expected)) << qtype;
    }
  }
}

TEST(QuantizeTensorKernelsOnBits, DecodeEveryPattern) {
  const test::UseThreads one(1);
  constexpr double kInf = std::numeric_limits<double>::infinity();
  const at::Tensor q = test::every_pattern(at::kHalf);
  for (const DQuantType qtype : kDQuantTypes) {
    for (const std::optional<double> loss :
         {std::optional<double>(), {1.0}, {3.0}, {-0.37}, {1e-30}, {1e300}, {0.0}, {kInf}, {std::nan("")}}) {
      SCOPED_TRACE(::testing::Message() << qtype << " divided by " << loss.value_or(1));
      const at::Tensor expected = test::upstream_dequantize(q, qtype, loss);
      for (const int64_t target : instruction_sets()) {
        const UseInstructionSet use(target);
        EXPECT_TRUE(same_bits(run_decode(q, qtype, loss), expected));
      }
    }
  }
}

TEST(QuantizeTensorKernelsOnBits, DecodeEverySize) {
  for (const int64_t size : test::kSizes) {
    const at::Tensor q = at::randint(-32768, 32768, {size}, at::kShort).view(at::kHalf);
    for (const DQuantType qtype : kDQuantTypes) {
      const at::Tensor expected = test::upstream_dequantize(q, qtype, 0.7);
      for (const int64_t target : instruction_sets()) {
        const UseInstructionSet use(target);
        EXPECT_TRUE(same_bits(run_decode(q, qtype, 0.7), expected)) << qtype << " of size " << size;
      }
    }
  }
}

}  // namespace
}  // namespace narrowcast::cpu
