// The wire formats' sizes and types, derived from their table. docs/reference/wire-format.md describes the bytes.
//
// - Block formats: the elements are cut into blocks of kBlock; the last one may be shorter. Each block is its scale
//   (bfloat16, little-endian), then the codes of its elements in order, kBits bits each, least significant bit first.
//   The last byte is filled up with zeros. Nothing is aligned. A sub-range that starts at a block is a separate
//   message.
// - Float formats: the elements one after another, little-endian.
// - Variable formats: see variable_width.h. Sparse formats: see sparse_top.h.
//
// A new format needs a number and a row in narrowcast/wire_formats.h, a type in wire_elements.h if its elements are
// new, and a description of its bytes in the documentation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string_view>
#include <type_traits>
#include <utility>

#include <narrowcast/wire_formats.h>
#include "ops/codec/host_device.h"
#include "ops/codec/size_arithmetic.h"
#include "ops/codec/sparse_top.h"
#include "ops/codec/variable_headers.h"
#include "ops/codec/wire_elements.h"

namespace narrowcast {

namespace codec::wire {

inline constexpr int64_t kScaleBytes = 2;

// The type of a format holds all properties from which others are derived. Rounding a number x to nearest has an error
// of at most the larger of kHalfStep and kRelativeHalfStep |x|.

// Scaled blocks of `kElements` codes of an Element of wire_elements.h. The half steps refer to x over its block's
// scale, whose magnitude is at most kGreatest.
template <class ElementType, int64_t kElements>
struct BlockFormat {
  using Element = ElementType;
  static constexpr bool kIsVariable = false;
  static constexpr bool kIsSparse = false;
  static constexpr bool kHasBlocks = true;
  static constexpr int64_t kBlock = kElements;
  static constexpr int kBits = Element::kBits;
  static constexpr double kGreatest = Element::kGreatest;
  static constexpr double kHalfStep = Element::kHalfStep;
  static constexpr double kRelativeHalfStep = Element::kRelativeHalfStep;
  static constexpr int64_t kBlockBytes = kScaleBytes + kBlock * kBits / 8;  // Bytes of a whole block.
};

// Numbers without a scale, of an Element of wire_elements.h. There is no greatest code that a block must reach.
template <class ElementType>
struct FloatFormat {
  using Element = ElementType;
  static constexpr bool kIsVariable = false;
  static constexpr bool kIsSparse = false;
  static constexpr bool kHasBlocks = false;
  static constexpr int64_t kBlock = 1;
  static constexpr int kBits = 8 * sizeof(typename Element::Code);
  static constexpr double kHalfStep = Element::kHalfStep;
  static constexpr double kRelativeHalfStep = Element::kRelativeHalfStep;
  static constexpr int64_t kBlockBytes = sizeof(typename Element::Code);
};

// One step for a message and, for each block of codes, a width and the distance of the block's step below the
// message's. All of it takes kBits bits per element. The half step refers to x over the step. Messages cannot be split.
template <class ElementType>
struct VariableFormat {
  using Element = ElementType;
  static constexpr bool kIsVariable = true;
  static constexpr bool kIsSparse = false;
  static constexpr bool kHasBlocks = true;
  static constexpr int64_t kBlock = kVariableBlock;
  static constexpr int kBits = Element::kBits;
  static constexpr double kHalfStep = 0.5;
  static constexpr double kRelativeHalfStep = 0;
};

// Only the largest elements of each block, kPerMille of 1000, with kBits bits each; the others become 0. The half step
// refers to x over the largest magnitude of its block. Messages cannot be split: their blocks begin with the message.
template <class ElementType>
struct SparseFormat {
  using Element = ElementType;
  static constexpr bool kIsVariable = false;
  static constexpr bool kIsSparse = true;
  static constexpr bool kHasBlocks = true;
  static constexpr int64_t kBlock = kSparseBlock;
  static constexpr int kBits = Element::kBits;
  static constexpr int kPerMille = Element::kPerMille;
  static constexpr double kHalfStep = 1;
  static constexpr double kRelativeHalfStep = 0;
};

// The type of an Element's formats.
template <class Element, int64_t kElements>
constexpr auto format_of() {
  if constexpr (Element::kIsVariable) {
    static_assert(kElements == kVariableBlock, "blocks of variable width are planes of one word");
    return VariableFormat<Element>();
  } else if constexpr (kElements == kSparseBlock) {
    static_assert(kept_of_block<int64_t>(Element::kPerMille, kSparseBlock) <= kMostKept);
    static_assert(sparse_block_bytes<int64_t>(Element::kPerMille, kSparseBlock) <= kMostSparseBytes);
    static_assert(low_bits_of(Element::kPerMille) <= 8);
    return SparseFormat<Element>();
  } else if constexpr (kElements == 1) {
    return FloatFormat<Element>();
  } else {
    return BlockFormat<Element, kElements>();
  }
}

// The type of row kRow of kWireFormatRows.
template <std::size_t kRow>
using FormatOfRow =
    decltype(format_of<decltype(element_of<kWireFormatRows[kRow].element>()), kWireFormatRows[kRow].block>());

// Calls `visitor` with a value of the format's type. Throws std::invalid_argument if `format` is not a valid
// WireFormat.
template <std::size_t kRow = 0, class Visitor>
constexpr decltype(auto) visit(WireFormat format, Visitor&& visitor) {
  if (format == kWireFormatRows[kRow].format) {
    return visitor(FormatOfRow<kRow>());
  }
  if constexpr (kRow + 1 < kWireFormatRows.size()) {
    return wire::visit<kRow + 1>(format, std::forward<Visitor>(visitor));
  } else {
    throw std::invalid_argument("no WireFormat");
  }
}

// Whether blocks choose their widths, so that messages cannot be split. Throws std::invalid_argument if `format` is not
// a valid WireFormat.
inline bool is_variable(WireFormat format) {
  return visit(format, [](auto type) { return decltype(type)::kIsVariable; });
}

// The elements of 1000 that a message contains, if the format is sparse; else 1000. Throws std::invalid_argument if
// `format` is not a valid WireFormat.
constexpr int kept_per_mille(WireFormat format) {
  return visit(format, [](auto type) {
    if constexpr (decltype(type)::kIsSparse) {
      return decltype(type)::kPerMille;
    } else {
      return 1000;
    }
  });
}

// Whether a message contains only the largest elements of each block.
constexpr bool is_sparse(WireFormat format) { return kept_per_mille(format) < 1000; }

// Whether the message of a part that begins at a block is a part of the message.
inline bool can_be_split(WireFormat format) { return !is_variable(format) && !is_sparse(format); }

// visit(), for callers that process parts of messages separately. Also throws std::invalid_argument for a format whose
// messages cannot be split.
template <class Visitor>
decltype(auto) visit_fixed(WireFormat format, Visitor&& visitor) {
  using Result = decltype(visitor(FormatOfRow<0>()));
  return visit(format, [&](auto type) -> Result {
    if constexpr (decltype(type)::kIsVariable || decltype(type)::kIsSparse) {
      throw std::invalid_argument("a message in a variable or sparse format cannot be split into parts");
    } else {
      return visitor(type);
    }
  });
}

// The name in the format's row. Throws std::invalid_argument if `format` is not a valid WireFormat.
inline std::string_view name_of(WireFormat format) {
  for (const WireFormatRow& row : kWireFormatRows) {
    if (row.format == format) {
      return row.name;
    }
  }
  throw std::invalid_argument("no WireFormat");
}

// Bits of a code, without its share of a scale or its place. In variable formats it is an average that includes
// everything. Throws std::invalid_argument if `format` is not a valid WireFormat.
inline int64_t code_bits(WireFormat format) {
  return visit(format, [](auto type) { return int64_t{decltype(type)::kBits}; });
}

// Whether a finite number may change. Throws std::invalid_argument if `format` is not a valid WireFormat.
inline bool rounds(WireFormat format) {
  return visit(format, [](auto type) {
    using Format = decltype(type);
    return Format::kHalfStep > 0 || Format::kRelativeHalfStep > 0;
  });
}

// Bytes of a message of `numel` elements: the scales of all blocks, and all codes in whole bytes. Only the last block
// of a message may fill less than a whole block's bytes, and not in variable formats. Integer: int64_t, or c10::SymInt.
template <class Format, class Integer>
NARROWCAST_HOST_DEVICE Integer encoded_size(const Integer& numel) {
  const Integer blocks = (numel + (Format::kBlock - 1)) / Format::kBlock;
  if constexpr (Format::kIsSparse) {
    return sparse_bytes<Integer>(Format::kPerMille, numel);
  } else if constexpr (Format::kIsVariable) {
    const Integer least = smaller<Integer>(numel, 1) * kLeastVariableBytes;
    return greater<Integer>(blocks * (Format::kBits * Format::kBlock / 8), least);
  } else {
    const Integer code_bytes = (numel * Format::kBits + 7) / 8;
    return Format::kHasBlocks ? code_bytes + blocks * kScaleBytes : code_bytes;
  }
}

}  // namespace codec::wire
}  // namespace narrowcast
