#include "ops/cuda/quantize_tensor/quantize_tensor.h"

#include "ops/cuda/launch/launch.cuh"
#include "ops/cuda/launch/rows.cuh"
#include "ops/cuda/quantize_tensor/quantize_tensor_kernel.cuh"

namespace narrowcast::cuda {
namespace {

template <class Decode>
void decode(const uint16_t* codes, Decode decoder, int64_t n, float* decoded, Stream stream) {
  launch_for_each_part(DecodeRows<Decode>{codes, decoder, decoded}, 1, n, stream, "dequantize_tensor");
}

}  // namespace

void launch_encode_fp16(const void* x, FloatType type, int64_t n, uint16_t* codes, Stream stream) {
  visit_float_type(type, [&](auto constant) {
    using T = CudaFloat<decltype(constant)>;
    const EncodeRows<T, EncodeFp16<T>> encode{static_cast<const T*>(x), codes};
    launch_for_each_part(encode, 1, n, stream, "quantize_tensor");
  });
}

void launch_encode_bfp16(const void* x, FloatType type, int64_t n, uint16_t* codes, Stream stream) {
  visit_float_type(type, [&](auto constant) {
    using T = CudaFloat<decltype(constant)>;
    const EncodeRows<T, EncodeBfp16<T>> encode{static_cast<const T*>(x), codes};
    launch_for_each_part(encode, 1, n, stream, "quantize_tensor");
  });
}

void launch_decode_fp16(const uint16_t* codes, int64_t n, float* decoded, Stream stream) {
  decode(codes, DecodeFp16(), n, decoded, stream);
}

void launch_decode_bfp16(const uint16_t* codes, int64_t n, float* decoded, Stream stream) {
  decode(codes, DecodeBfp16(), n, decoded, stream);
}

void launch_decode_fp16(ScaledCodes scaled, int64_t n, float* decoded, Stream stream) {
  decode(scaled.codes, DecodeTimes<DecodeFp16>{scaled.factor}, n, decoded, stream);
}

void launch_decode_bfp16(ScaledCodes scaled, int64_t n, float* decoded, Stream stream) {
  decode(scaled.codes, DecodeTimes<DecodeBfp16>{scaled.factor}, n, decoded, stream);
}

}  // namespace narrowcast::cuda
