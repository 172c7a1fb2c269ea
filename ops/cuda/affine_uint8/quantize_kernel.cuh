// Floats to affine uint8 codes, as PyTorch's hooks compute them on CUDA: there the
// scale is rounded to x's dtype before x is divided by it. The CPU divides by the
// float32 scale.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "ops/codec/affine_uint8.h"
#include "ops/codec/host_device.h"
#include "ops/cuda/affine_uint8/qparams.h"
#include "ops/cuda/rows/convert_part.h"
#include "ops/cuda/rows/row_parts.h"

namespace narrowcast::cuda {

// codec::quantize for any scale.
template <class T>
struct QuantizeByDivision {
  codec::AffineQparams qparams;

  NARROWCAST_HOST_DEVICE uint8_t operator()(T x) const { return codec::quantize(x, qparams); }
};

// codec::quantize for a scale that ReciprocalDivision takes and T with at most float's precision, in half the
// instructions: whole numbers are added as such, and their sum, if it is a code, is one that T can say.
template <class T>
class QuantizeByReciprocal {
 public:
  NARROWCAST_HOST_DEVICE explicit QuantizeByReciprocal(codec::AffineQparams qparams)
      : division_(qparams.scale), offset_(qparams.zero_point - kBitsOfRounder) {}

  NARROWCAST_HOST_DEVICE uint8_t operator()(T x) const {
    const auto quotient = static_cast<float>(static_cast<T>(division_.quotient(static_cast<float>(x))));
    const float near = std::fmin(std::fmax(quotient, -1024.0F), 1024.0F);  // NaN becomes -1024, whose code is 0.
    const auto bits = static_cast<int32_t>(codec::float_bits(near + kRounder));
    const int32_t code = bits + offset_;
    return static_cast<uint8_t>(code < 0 ? 0 : code > 255 ? 255 : code);
  }

 private:
  // Float32 has no fractions at 1.5 * 2^23: a sum with it is rounded to a whole number, half to even, which its lowest
  // bits then show.
  static constexpr float kRounder = 0x1.8p23F;
  static constexpr int32_t kBitsOfRounder = 0x4B400000;

  codec::ReciprocalDivision division_;
  int32_t offset_;
};

template <class T>
struct QuantizeRows {
  static constexpr int64_t kPart = int64_t{256} * kBatch * kPackOf<T, uint8_t>;

  const T* x;
  QparamsIn qparams;  // of each row
  uint8_t* codes;

  NARROWCAST_HOST_DEVICE void operator()(RowPart part, Lane lane) const {
    codec::AffineQparams of_row = qparams.at(part.row);
    if constexpr (!std::is_same_v<T, double>) {
      of_row.scale = static_cast<float>(static_cast<T>(of_row.scale));
      if (codec::ReciprocalDivision::is_moderate(of_row.scale)) {
        convert_part<kBatch>(x + part.first, part.size, codes + part.first, lane, QuantizeByReciprocal<T>(of_row));
        return;
      }
    }
    convert_part<1>(x + part.first, part.size, codes + part.first, lane, QuantizeByDivision<T>{of_row});
  }
};

}  // namespace narrowcast::cuda
