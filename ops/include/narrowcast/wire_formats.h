// The wire formats, for code with LibTorch and without. docs/wire_format.md describes their bytes.
#pragma once

#include <array>

namespace narrowcast {

// How elements travel. Prints as the operators' `format`.
enum class WireFormat {
  kInt8B32,     // "int8_b32": integers of 8 bits, a scale for each 32 elements.
  kInt8B128,    // "int8_b128": the same for each 128.
  kInt8B256,    // "int8_b256": the same for each 256.
  kInt6B32,     // "int6_b32": integers of 6 bits, a scale for each 32 elements.
  kInt4B32,     // "int4_b32": integers of 4 bits, a scale for each 32 elements.
  kFp8E4M3B32,  // "fp8_e4m3_b32": FP8 E4M3, a scale for each 32 elements.
  kBf16,        // "bf16": bfloat16.
  kFp16,        // "fp16": IEEE binary16.
  kFp32,        // "fp32": float32 as it is.
};

// All of them, in the order of the documentation.
inline constexpr std::array kWireFormats{WireFormat::kInt8B32, WireFormat::kInt8B128, WireFormat::kInt8B256,
                                         WireFormat::kInt6B32, WireFormat::kInt4B32,  WireFormat::kFp8E4M3B32,
                                         WireFormat::kBf16,    WireFormat::kFp16,     WireFormat::kFp32};

}  // namespace narrowcast
