// What a message between ranks can be made of: the formats' names, sizes and types. docs/wire_format.md describes the
// bytes.
//
// Block formats: numel elements are cut into blocks of kBlock, the last one shorter. Each block is its scale (bfloat16,
// little-endian), then the code of each of its elements in order, kBits bits each, least significant bit first, the
// last byte filled up with zeros. Nothing is aligned. A sub-range that starts at a block is a message of its own. Float
// formats: the elements one after another, little-endian.
//
// A new format is a number and a place in kWireFormats (narrowcast/wire_formats.h), a type and a line of `visit` here,
// where it has new elements a type in wire_elements.h, and its bytes in the documentation.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string_view>

#include <narrowcast/wire_formats.h>
#include "ops/codec/host_device.h"
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
  static constexpr bool kHasBlocks = true;
  static constexpr int64_t kBlock = kElements;
  static constexpr int kBits = Element::kBits;
  static constexpr double kGreatest = Element::kGreatest;
  static constexpr double kHalfStep = Element::kHalfStep;
  static constexpr double kRelativeHalfStep = Element::kRelativeHalfStep;
  static constexpr int64_t kBlockBytes = kScaleBytes + kBlock * kBits / 8;  // Of a whole block.
};

// Numbers by themselves, of an Element of wire_elements.h. Without a scale they have no greatest code to fill.
template <class ElementType>
struct FloatFormat {
  using Element = ElementType;
  static constexpr bool kHasBlocks = false;
  static constexpr int64_t kBlock = 1;
  static constexpr int kBits = 8 * sizeof(typename Element::Code);
  static constexpr double kHalfStep = Element::kHalfStep;
  static constexpr double kRelativeHalfStep = Element::kRelativeHalfStep;
  static constexpr int64_t kBlockBytes = sizeof(typename Element::Code);
};

// The formats, each with its name on command lines and in operators.

struct Int8B32 : BlockFormat<SymmetricInt<8>, 32> {
  static constexpr std::string_view kName = "int8_b32";
};

struct Int8B128 : BlockFormat<SymmetricInt<8>, 128> {
  static constexpr std::string_view kName = "int8_b128";
};

struct Int8B256 : BlockFormat<SymmetricInt<8>, 256> {
  static constexpr std::string_view kName = "int8_b256";
};

struct Int6B32 : BlockFormat<SymmetricInt<6>, 32> {
  static constexpr std::string_view kName = "int6_b32";
};

struct Int4B32 : BlockFormat<SymmetricInt<4>, 32> {
  static constexpr std::string_view kName = "int4_b32";
};

struct Fp8E4M3B32 : BlockFormat<Float8E4M3, 32> {
  static constexpr std::string_view kName = "fp8_e4m3_b32";
};

struct Bf16 : FloatFormat<Bfloat16> {
  static constexpr std::string_view kName = "bf16";
};

struct Fp16 : FloatFormat<Binary16> {
  static constexpr std::string_view kName = "fp16";
};

struct Fp32 : FloatFormat<Binary32> {
  static constexpr std::string_view kName = "fp32";
};

// Calls `visitor` with a value of the format's type. A number that is no WireFormat throws std::invalid_argument.
template <class Visitor>
decltype(auto) visit(WireFormat format, Visitor&& visitor) {
  switch (format) {
    case WireFormat::kInt8B32:
      return visitor(Int8B32());
    case WireFormat::kInt8B128:
      return visitor(Int8B128());
    case WireFormat::kInt8B256:
      return visitor(Int8B256());
    case WireFormat::kInt6B32:
      return visitor(Int6B32());
    case WireFormat::kInt4B32:
      return visitor(Int4B32());
    case WireFormat::kFp8E4M3B32:
      return visitor(Fp8E4M3B32());
    case WireFormat::kBf16:
      return visitor(Bf16());
    case WireFormat::kFp16:
      return visitor(Fp16());
    case WireFormat::kFp32:
      return visitor(Fp32());
  }
  throw std::invalid_argument("no WireFormat");
}

// The format's kName. A number that is no WireFormat throws std::invalid_argument.
inline std::string_view name_of(WireFormat format) {
  return visit(format, [](auto type) { return decltype(type)::kName; });
}

// Bits of a code, without its share of a scale. A number that is no WireFormat throws std::invalid_argument.
inline int64_t code_bits(WireFormat format) {
  return visit(format, [](auto type) { return int64_t{decltype(type)::kBits}; });
}

// Bytes of a message of `numel` elements: scales of all blocks, and all codes in whole bytes. Every block but the last
// fills its bytes. Integer: int64_t, or c10::SymInt.
template <class Format, class Integer>
NARROWCAST_HOST_DEVICE Integer encoded_size(const Integer& numel) {
  const Integer code_bytes = (numel * Format::kBits + 7) / 8;
  return Format::kHasBlocks ? code_bytes + (numel + (Format::kBlock - 1)) / Format::kBlock * kScaleBytes : code_bytes;
}

}  // namespace codec::wire
}  // namespace narrowcast
