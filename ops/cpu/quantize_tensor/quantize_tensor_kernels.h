// FP16 and BFP16 (ops/codec/quantize_tensor.h) over arrays, in one pass. The kernels are vectorised, the instruction
// set is chosen at run time, and all instruction sets give the same bits. Each function runs on the calling thread; to
// use more threads, split the work. Pointers need no alignment, must not overlap, and may be null if the size is 0.
#pragma once

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cstdint>
#include <tuple>

namespace narrowcast::cpu {

// Arrays for encoding. T is float, double, c10::BFloat16 or c10::Half.
template <class T>
struct EncodeSpan {
  const T* x;
  int64_t n;
  uint16_t* codes;
};

// Arrays for decoding.
struct DecodeSpan {
  const uint16_t* codes;
  int64_t n;
  float* out;
};

// codes[i] = codec::encode_fp16(x[i], limit), with x as float32, and the limit 65504 rounded to T.
template <class T>
void encode_fp16(EncodeSpan<T> span);

// codes[i] = codec::encode_bfp16(x[i]), with x as float32.
template <class T>
void encode_bfp16(EncodeSpan<T> span);

// out[i] = codec::decode_fp16(codes[i]), divided by quant_loss if given.
void decode_fp16(DecodeSpan span);
void decode_fp16(DecodeSpan span, float quant_loss);

// out[i] = codec::decode_bfp16(codes[i]), divided by quant_loss if given.
void decode_bfp16(DecodeSpan span);
void decode_bfp16(DecodeSpan span, float quant_loss);

// Instantiated in quantize_tensor_kernels.cpp.
#define NARROWCAST_DECLARE_ENCODE(T)               \
  extern template void encode_fp16(EncodeSpan<T>); \
  extern template void encode_bfp16(EncodeSpan<T>);
NARROWCAST_DECLARE_ENCODE(float)
NARROWCAST_DECLARE_ENCODE(double)
NARROWCAST_DECLARE_ENCODE(c10::BFloat16)
NARROWCAST_DECLARE_ENCODE(c10::Half)
#undef NARROWCAST_DECLARE_ENCODE

// The above encoders for elements of T, for one instruction set.
template <class T>
struct EncodeKernels {
  void (*fp16)(EncodeSpan<T>);
  void (*bfp16)(EncodeSpan<T>);
};

// The encoders for one instruction set.
using EncodeKernelTable =
    std::tuple<EncodeKernels<float>, EncodeKernels<double>, EncodeKernels<c10::BFloat16>, EncodeKernels<c10::Half>>;

}  // namespace narrowcast::cpu
