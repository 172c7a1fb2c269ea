// What a message between ranks can be made of: the formats' sizes and types, from their table. docs/wire_format.md
// describes the bytes.
//
// Block formats: numel elements are cut into blocks of kBlock, the last one shorter. Each block is its scale (bfloat16,
// little-endian), then the code of each of its elements in order, kBits bits each, least significant bit first, the
// last byte filled up with zeros. Nothing is aligned. A sub-range that starts at a block is a message of its own. Float
// formats: the elements one after another, little-endian. Variable formats: variable_width.h.
//
// A new format is a number and a row in narrowcast/wire_formats.h, where it has new elements their type in
// wire_elements.h, and its bytes in the documentation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string_view>
#include <type_traits>
#include <utility>

#include <narrowcast/wire_formats.h>
#include "ops/codec/host_device.h"
#include "ops/codec/variable_headers.h"
#include "ops/codec/wire_elements.h"

namespace narrowcast {

namespace codec::wire {

inline constexpr int64_t kScaleBytes = 2;

// A format's type says all that others derive from it. What rounding a number x to the nearest costs is at most the
// larger of kHalfStep and kRelativeHalfStep |x|.

// Scaled blocks of `kElements` codes of an Element of wire_elements.h. The half steps are those of x over its block's
// scale, whose magnitude is at most kGreatest.
template <class ElementType, int64_t kElements>
struct BlockFormat {
  using Element = ElementType;
  static constexpr bool kIsVariable = false;
  static constexpr bool kHasBlocks = true;
  static constexpr int64_t kBlock = kElements;
  static constexpr int kBits = Element::kBits;
  static constexpr double kGreatest = Element::kGreatest;
  static constexpr double kHalfStep = Element::kHalfStep;
  static constexpr double kRelativeHalfStep = Element::kRelativeHalfStep;
  static constexpr int64_t kBlockBytes = kScaleBytes + kBlock * kBits / 8;  // A whole block has so many.
};

// Numbers by themselves, of an Element of wire_elements.h. Without a scale they have no greatest code to fill.
template <class ElementType>
struct FloatFormat {
  using Element = ElementType;
  static constexpr bool kIsVariable = false;
  static constexpr bool kHasBlocks = false;
  static constexpr int64_t kBlock = 1;
  static constexpr int kBits = 8 * sizeof(typename Element::Code);
  static constexpr double kHalfStep = Element::kHalfStep;
  static constexpr double kRelativeHalfStep = Element::kRelativeHalfStep;
  static constexpr int64_t kBlockBytes = sizeof(typename Element::Code);
};

// A step for a message, and for each block of codes a width and how far its own step is below: kBits bits per element,
// all included. The half step is that of x over the step. A part of a message is none.
template <class ElementType>
struct VariableFormat {
  using Element = ElementType;
  static constexpr bool kIsVariable = true;
  static constexpr bool kHasBlocks = true;
  static constexpr int64_t kBlock = kVariableBlock;
  static constexpr int kBits = Element::kBits;
  static constexpr double kHalfStep = 0.5;
  static constexpr double kRelativeHalfStep = 0;
};

// The type of an Element's formats.
template <class Element, int64_t kElements>
constexpr auto format_of() {
  if constexpr (Element::kIsVariable) {
    static_assert(kElements == kVariableBlock, "blocks of variable width are planes of one word");
    return VariableFormat<Element>();
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

// Calls `visitor` with a value of the format's type. A number that is no WireFormat throws std::invalid_argument.
template <std::size_t kRow = 0, class Visitor>
decltype(auto) visit(WireFormat format, Visitor&& visitor) {
  if (format == kWireFormatRows[kRow].format) {
    return visitor(FormatOfRow<kRow>());
  }
  if constexpr (kRow + 1 < kWireFormatRows.size()) {
    return wire::visit<kRow + 1>(format, std::forward<Visitor>(visitor));
  } else {
    throw std::invalid_argument("no WireFormat");
  }
}

// Whether blocks choose their widths, so that parts of messages are no messages. A number that is no WireFormat throws
// std::invalid_argument.
inline bool is_variable(WireFormat format) {
  return visit(format, [](auto type) { return decltype(type)::kIsVariable; });
}

// visit(), for who works on parts of messages by themselves. A variable format throws std::invalid_argument, too.
template <class Visitor>
decltype(auto) visit_fixed(WireFormat format, Visitor&& visitor) {
  using Result = decltype(visitor(FormatOfRow<0>()));
  return visit(format, [&](auto type) -> Result {
    if constexpr (decltype(type)::kIsVariable) {
      throw std::invalid_argument("a part of a message in a variable format is none");
    } else {
      return visitor(type);
    }
  });
}

// The name in the format's row. A number that is no WireFormat throws std::invalid_argument.
inline std::string_view name_of(WireFormat format) {
  for (const WireFormatRow& row : kWireFormatRows) {
    if (row.format == format) {
      return row.name;
    }
  }
  throw std::invalid_argument("no WireFormat");
}

// Bits of a code, without its share of a scale; in variable formats on average, with its share of everything. A number
// that is no WireFormat throws std::invalid_argument.
inline int64_t code_bits(WireFormat format) {
  return visit(format, [](auto type) { return int64_t{decltype(type)::kBits}; });
}

// Whether a finite number may become another. A number that is no WireFormat throws std::invalid_argument.
inline bool rounds(WireFormat format) {
  return visit(format, [](auto type) {
    using Format = decltype(type);
    return Format::kHalfStep > 0 || Format::kRelativeHalfStep > 0;
  });
}

// The greater of two sizes, and the smaller: c10::SymInt has functions of its own, which trace.
template <class Integer>
NARROWCAST_HOST_DEVICE Integer greater(const Integer& a, const Integer& b) {
  if constexpr (std::is_integral_v<Integer>) {
    return a < b ? b : a;
  } else {
    return a.max(b);
  }
}

template <class Integer>
NARROWCAST_HOST_DEVICE Integer smaller(const Integer& a, const Integer& b) {
  if constexpr (std::is_integral_v<Integer>) {
    return b < a ? b : a;
  } else {
    return a.min(b);
  }
}

// Bytes of a message of `numel` elements: scales of all blocks, and all codes in whole bytes. Every block but the last
// fills its bytes; in variable formats the last one, too. Integer: int64_t, or c10::SymInt.
template <class Format, class Integer>
NARROWCAST_HOST_DEVICE Integer encoded_size(const Integer& numel) {
  const Integer blocks = (numel + (Format::kBlock - 1)) / Format::kBlock;
  if constexpr (Format::kIsVariable) {
    const Integer least = smaller<Integer>(numel, 1) * kLeastVariableBytes;
    return greater<Integer>(blocks * (Format::kBits * Format::kBlock / 8), least);
  } else {
    const Integer code_bytes = (numel * Format::kBits + 7) / 8;
    return Format::kHasBlocks ? code_bytes + blocks * kScaleBytes : code_bytes;
  }
}

}  // namespace codec::wire
}  // namespace narrowcast
