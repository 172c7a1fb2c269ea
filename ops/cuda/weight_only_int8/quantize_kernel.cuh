// The largest magnitude of a channel and its scale, and quantisation to symmetric codes, with the arithmetic of the
// CPU. Tests compile this file for the CPU.
#pragma once

#include <cstdint>

#include "ops/codec/host_device.h"
#include "ops/codec/weight_only_int8.h"
#include "ops/cuda/launch/rows.h"

namespace narrowcast::cuda {

// The bits of the largest magnitude seen. Their order is the order of magnitudes, with NaN above all numbers.
struct MagnitudeBits {
  uint32_t largest = 0;

  NARROWCAST_HOST_DEVICE void add(float value) {
    const uint32_t bits = codec::magnitude_bits(value);
    largest = bits > largest ? bits : largest;
  }
};

NARROWCAST_HOST_DEVICE inline MagnitudeBits merge(MagnitudeBits a, MagnitudeBits b) {
  return {a.largest > b.largest ? a.largest : b.largest};
}

// Writes a channel's scale, as PyTorch computes it on CUDA, and its zero point, 0.
template <class T>
struct StoreSymmetricScale {
  codec::CodeRange range;
  T* scales;
  int64_t* zero_points;

  NARROWCAST_HOST_DEVICE void operator()(int64_t channel, MagnitudeBits bits) const {
    scales[channel] = codec::symmetric_scale_by_reciprocal<T>(codec::float_of_bits(bits.largest), range);
    zero_points[channel] = 0;
  }
};

// codec::symmetric_code for any scale.
template <class T, class Code>
struct SymmetricCodeByDivision {
  T scale;
  codec::CodeRange range;

  NARROWCAST_HOST_DEVICE Code operator()(T x) const {
    return static_cast<Code>(codec::symmetric_code(x, scale, range));
  }
};

// The same for a scale with ReciprocalDivision::is_moderate().
template <class T, class Code>
struct SymmetricCodeByReciprocal {
  codec::ReciprocalDivision division;
  codec::CodeRange range;

  NARROWCAST_HOST_DEVICE Code operator()(T x) const {
    return static_cast<Code>(codec::symmetric_code_of_quotient<T>(division.quotient(static_cast<float>(x)), range));
  }
};

// Quantisation of rows.
template <class T, class Code>
struct SymmetricCodeRows {
  static constexpr int64_t kPart = int64_t{256} * kBatch * kPackOf<T, Code>;

  const T* x;
  const T* scales;  // of each row
  codec::CodeRange range;
  Code* codes;

  NARROWCAST_HOST_DEVICE void operator()(RowPart part, Lane lane) const {
    const T scale = scales[part.row];
    if (codec::ReciprocalDivision::is_moderate(static_cast<float>(scale))) {
      const SymmetricCodeByReciprocal<T, Code> code{codec::ReciprocalDivision(static_cast<float>(scale)), range};
      convert_part<kBatch>(x + part.first, part.size, codes + part.first, lane, code);
    } else {
      const SymmetricCodeByDivision<T, Code> code{scale, range};
      convert_part<1>(x + part.first, part.size, codes + part.first, lane, code);
    }
  }
};

}  // namespace narrowcast::cuda
