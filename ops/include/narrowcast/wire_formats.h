// The wire formats, for code with LibTorch and without. docs/wire_format.md describes their bytes.
#pragma once

#include <array>

namespace narrowcast {

// How elements travel. Prints as the operators' `format`.
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
};

inline constexpr std::array kWireFormats{WireFormat::kInt8B32, WireFormat::kInt8B128, WireFormat::kInt8B256,
                                         WireFormat::kInt6B32, WireFormat::kInt4B32,  WireFormat::kFp8E4M3B32,
                                         WireFormat::kBf16,    WireFormat::kFp16,     WireFormat::kFp32};

}  // namespace narrowcast
