// The wire formats, for code with LibTorch and without. docs/reference/wire-format.md describes their bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace narrowcast {

// Formats of the elements that ranks send; kWireFormatRows defines each. Prints as the operators' `format`.
enum class WireFormat {
  kInt8B32,
  kInt8B128,
  kInt8B256,
  kInt6B32,
  kInt4B32,
  kFp8E4M3B32,
  kBf16,
  kFp16,
  kFp32,
  kVar6,
  kVar5,
  kVar4,
  kVar3,
  kTop2P15,
  kTop2P31
};

// The encoding of an element.
enum class WireElement {
  kInt8,      // An integer from -127 to 127, times the scale of its block.
  kInt6,      // From -31 to 31.
  kInt4,      // From -7 to 7.
  kFp8E4M3,   // FP8 E4M3, times the scale of its block.
  kBfloat16,  // Not scaled, nor are the next two.
  kBinary16,
  kBinary32,
  kVariable6,  // An integer of as many bits as its block needs, 6 on average, times its block's step.
  kVariable5,
  kVariable4,
  kVariable3,
  kTopOf15,  // Of the largest 15 per mille of a block: 2 bits, a sign and one of two levels. All others are 0.
  kTopOf31,
};

// A wire format.
struct WireFormatRow {
  WireFormat format;      // Its number.
  std::string_view name;  // The name on command lines and in operators.
  WireElement element;    // The encoding of its elements.
  int64_t block;          // Elements that share a scale, levels, or a header in variable formats; else 1.
};

// All formats, in the order of the documentation. A new format of existing elements needs a number above and a row
// here.
inline constexpr std::array kWireFormatRows{
    WireFormatRow{WireFormat::kInt8B32, "int8_b32", WireElement::kInt8, 32},
    WireFormatRow{WireFormat::kInt8B128, "int8_b128", WireElement::kInt8, 128},
    WireFormatRow{WireFormat::kInt8B256, "int8_b256", WireElement::kInt8, 256},
    WireFormatRow{WireFormat::kInt6B32, "int6_b32", WireElement::kInt6, 32},
    WireFormatRow{WireFormat::kInt4B32, "int4_b32", WireElement::kInt4, 32},
    WireFormatRow{WireFormat::kFp8E4M3B32, "fp8_e4m3_b32", WireElement::kFp8E4M3, 32},
    WireFormatRow{WireFormat::kBf16, "bf16", WireElement::kBfloat16, 1},
    WireFormatRow{WireFormat::kFp16, "fp16", WireElement::kBinary16, 1},
    WireFormatRow{WireFormat::kFp32, "fp32", WireElement::kBinary32, 1},
    WireFormatRow{WireFormat::kVar6, "var6", WireElement::kVariable6, 32},
    WireFormatRow{WireFormat::kVar5, "var5", WireElement::kVariable5, 32},
    WireFormatRow{WireFormat::kVar4, "var4", WireElement::kVariable4, 32},
    WireFormatRow{WireFormat::kVar3, "var3", WireElement::kVariable3, 32},
    WireFormatRow{WireFormat::kTop2P15, "top2_15", WireElement::kTopOf15, 4096},
    WireFormatRow{WireFormat::kTop2P31, "top2_31", WireElement::kTopOf31, 4096}};

// The rows' numbers, in the same order.
inline constexpr auto kWireFormats = [] {
  std::array<WireFormat, kWireFormatRows.size()> formats{};
  for (std::size_t i = 0; i < formats.size(); ++i) {
    formats[i] = kWireFormatRows[i].format;
  }
  return formats;
}();

}  // namespace narrowcast
