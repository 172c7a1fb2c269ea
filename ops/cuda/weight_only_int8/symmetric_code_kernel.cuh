// Floats to symmetric codes, with the arithmetic of the CPU.
#pragma once

#include <cstdint>

#include "ops/codec/host_device.h"
#include "ops/codec/weight_only_int8.h"
#include "ops/cuda/rows/convert_part.h"
#include "ops/cuda/rows/row_parts.h"

namespace narrowcast::cuda {

template <class T, class Code>
struct SymmetricCodeByDivision {
  T scale;
  codec::CodeRange range;

  NARROWCAST_HOST_DEVICE Code operator()(T x) const {
    return static_cast<Code>(codec::symmetric_code(x, scale, range));
  }
};

// The same for a scale that ReciprocalDivision takes.
template <class T, class Code>
struct SymmetricCodeByReciprocal {
  codec::ReciprocalDivision division;
  codec::CodeRange range;

  NARROWCAST_HOST_DEVICE Code operator()(T x) const {
    return static_cast<Code>(codec::symmetric_code_of_quotient<T>(division.quotient(static_cast<float>(x)), range));
  }
};

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
