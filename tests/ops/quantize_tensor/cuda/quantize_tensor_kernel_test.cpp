// The source of the CUDA kernels, run on the CPU, compared with upstream's operators. With quant_loss the reference
// divides like PyTorch's CUDA kernels.
#include "ops/cuda/quantize_tensor/quantize_tensor_kernel.cuh"

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <gtest/gtest.h>

#include "tests/ops/cuda/launch/rows_on_host.h"
#include "tests/ops/quantize_tensor/reference.h"

namespace narrowcast::cuda {
namespace {

using narrowcast::test::same_bits;

at::Tensor encode_on_host(const at::Tensor& x, DQuantType qtype, int team) {
  at::Tensor q = at::empty(x.sizes(), at::kHalf);
  auto* const codes = static_cast<uint16_t*>(q.mutable_data_ptr());
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, x.scalar_type(), "encode", [&] {
    const auto* const in = x.const_data_ptr<scalar_t>();
    if (qtype == DQuantType::kFp16) {
      test::run_for_each_part(EncodeRows<scalar_t, EncodeFp16<scalar_t>>{in, codes}, 1, x.numel(), 1024, team);
    } else {
      test::run_for_each_part(EncodeRows<scalar_t, EncodeBfp16<scalar_t>>{in, codes}, 1, x.numel(), 1024, team);
    }
  });
  return q;
}

template <class Decode>
at::Tensor decode_on_host(const at::Tensor& q, Decode decode, int team) {
  at::Tensor decoded = at::empty(q.sizes());
  const DecodeRows<Decode> rows{static_cast<const uint16_t*>(q.const_data_ptr()), decode,
                                decoded.mutable_data_ptr<float>()};
  test::run_for_each_part(rows, 1, q.numel(), 1024, team);
  return decoded;
}

TEST(EncodeKernel, EqualsPyTorch) {
  for (const at::ScalarType dtype : narrowcast::test::kFloatTypes) {
    for (const int64_t size : {1, 7, 129, 5003}) {
      for (const auto& [name, x] : narrowcast::test::inputs(dtype, size)) {
        for (const DQuantType qtype : narrowcast::test::kDQuantTypes) {
          SCOPED_TRACE(::testing::Message() << dtype << " " << name << " of size " << size << " as " << qtype);
          for (const int team : test::kTeams) {
            EXPECT_TRUE(narrowcast::test::encodes_as_upstream(encode_on_host(x, qtype, team), x, qtype));
          }
        }
      }
    }
  }
}

TEST(DecodeKernel, EqualsPyTorchForEveryCode) {
  const at::Tensor q = narrowcast::test::every_pattern(at::kHalf);
  for (const int team : test::kTeams) {
    EXPECT_TRUE(same_bits(decode_on_host(q, DecodeFp16(), team),
                          narrowcast::test::upstream_dequantize(q, DQuantType::kFp16, {})));
    EXPECT_TRUE(same_bits(decode_on_host(q, DecodeBfp16(), team),
                          narrowcast::test::upstream_dequantize(q, DQuantType::kBfp16, {})));
  }
}

TEST(DecodeKernel, MultipliesByTheReciprocalOfQuantLoss) {
  const at::Tensor q = narrowcast::test::every_pattern(at::kHalf);
  const float factor = 1.0F / 1.1F;
  for (const DQuantType qtype : narrowcast::test::kDQuantTypes) {
    const at::Tensor expected = narrowcast::test::upstream_dequantize(q, qtype, {}) * factor;
    const at::Tensor actual = qtype == DQuantType::kFp16 ? decode_on_host(q, DecodeTimes<DecodeFp16>{factor}, 256)
                                                         : decode_on_host(q, DecodeTimes<DecodeBfp16>{factor}, 256);
    EXPECT_TRUE(same_bits(actual, expected));
  }
}

}  // namespace
}  // namespace narrowcast::cuda
