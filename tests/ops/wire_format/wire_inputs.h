// Shared code of the tests of wire formats: inputs, the plain codec, and bounds of the error of decoded values.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "ops/codec/wire_message.h"
#include "tests/ops/affine_uint8/reference.h"
#include "tests/support/sanitized.h"

namespace narrowcast::test {

using Floats = std::vector<float>;
using Bytes = std::vector<uint8_t>;
using codec::wire::Rounding;

inline const Rounding kNearest{};
inline const Rounding kStochastic{true, 0x0123456789ABCDEF, uint64_t{1} << 40, 0xFFFFFFFFFE};

// Arrays of one size, named by their difficulty; the first one has usual numbers.
inline std::vector<std::pair<std::string, Floats>> all_wire_inputs(int64_t size) {
  std::vector<std::pair<std::string, Floats>> result;
  for (const auto& [name, x] : all_inputs(at::kFloat, size)) {
    const auto* const begin = x.const_data_ptr<float>();
    result.emplace_back(name, Floats(begin, begin + size));
  }
  const auto generate = [&](const std::string& name, auto value) {
    Floats x(static_cast<size_t>(size));
    for (int64_t i = 0; i < size; ++i) x[static_cast<size_t>(i)] = value(i);
    result.emplace_back(name, std::move(x));
  };
  if (size <= 1000) {
    generate("zeros of both signs", [](int64_t i) { return i % 2 == 0 ? 0.0F : -0.0F; });
    generate("subnormals", [](int64_t i) { return std::ldexp(static_cast<float>(i - 100), -149); });
    generate("scales about 2^-100", [](int64_t i) { return std::ldexp(static_cast<float>(i % 37 - 18), -100); });
    generate("greatest", [](int64_t i) { return (i % 3 - 1) * std::numeric_limits<float>::max() / (1 + i % 5); });
    generate("ties", [](int64_t i) { return (i % 32 == 0 ? 127.0F : 0.5F * static_cast<float>(i % 31)); });
  }
  return result;
}

// The same inputs; under sanitizers only some of them, different ones at each call.
inline std::vector<std::pair<std::string, Floats>> wire_inputs(int64_t size) { return some_of(all_wire_inputs(size)); }

// Numbers without any difficulty.
inline Floats usual_numbers(int64_t size) { return all_wire_inputs(size)[0].second; }

// Calls body(Format()) for the format's type.
template <class Body>
decltype(auto) with_format(WireFormat format, Body&& body) {
  return codec::wire::visit(format, std::forward<Body>(body));
}

// The formats in which a part that begins at a block is a separate message.
inline std::vector<WireFormat> fixed_formats() {
  std::vector<WireFormat> formats(kWireFormats.begin(), kWireFormats.end());
  std::erase_if(formats, std::not_fn(codec::wire::can_be_split));
  return formats;
}

inline std::vector<WireFormat> sparse_formats() {
  std::vector<WireFormat> formats(kWireFormats.begin(), kWireFormats.end());
  std::erase_if(formats, std::not_fn(codec::wire::is_sparse));
  return formats;
}

// The formats that send every element, and so have an expected value with stochastic rounding.
inline std::vector<WireFormat> dense_formats() {
  std::vector<WireFormat> formats(kWireFormats.begin(), kWireFormats.end());
  std::erase_if(formats, codec::wire::is_sparse);
  return formats;
}

inline std::vector<WireFormat> variable_formats() {
  std::vector<WireFormat> formats(kWireFormats.begin(), kWireFormats.end());
  std::erase_if(formats, std::not_fn(codec::wire::is_variable));
  return formats;
}

inline int64_t block_of(WireFormat format) {
  return with_format(format, [](auto type) { return decltype(type)::kBlock; });
}

inline int64_t size_of(WireFormat format, int64_t numel) {
  return with_format(format, [&](auto type) { return codec::wire::encoded_size<decltype(type)>(numel); });
}

inline Bytes plain_encode(WireFormat format, const Floats& x, const Rounding& rounding) {
  Bytes bytes(static_cast<size_t>(size_of(format, static_cast<int64_t>(x.size()))));
  with_format(format, [&](auto type) {
    codec::wire::encode<decltype(type)>(x.data(), static_cast<int64_t>(x.size()), rounding, bytes.data());
  });
  return bytes;
}

inline Floats plain_decode(WireFormat format, const Bytes& bytes, int64_t n) {
  Floats out(static_cast<size_t>(n));
  with_format(format, [&](auto type) { codec::wire::decode<decltype(type)>(bytes.data(), n, out.data()); });
  return out;
}

// Equal bits.
inline bool same(const Floats& a, const Floats& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](float x, float y) { return codec::float_bits(x) == codec::float_bits(y); });
}

// The largest error of rounding x to nearest, if the largest magnitude of its block is `largest`. Both are finite.
//
// Block formats: scale <= largest / greatest * (1 + 2^-7), because the next bfloat16 is at most that far. The rounded
// quotient has a relative error of 2^-23 (2^-24 each of the inverse and the product), at most greatest * 2^-23.
// Integers round by half a scale. E4M3 rounds by 2^-4 of a number, which has 4 digits, and by half of 2^-9 scales below
// its normal range. A block whose scale would be below 2^-100 becomes 0.
//
// Formats without blocks: bfloat16 has 8 digits down to 2^-126 and rounds by half of 2^-133 below. binary16 has 11
// digits down to 2^-14 and rounds by half of 2^-24 below.
//
// Variable formats: the step depends on the whole message; see variable_bound.
//
// Sparse formats: an element that is not kept becomes 0, and a level is at most the largest magnitude, rounded to
// bfloat16.
inline double rounding_bound(WireFormat format, double x, double largest) {
  const auto block_bound = [&](double greatest, double relative, double absolute) {
    const double scale = largest / greatest * (1 + 0x1p-7);
    const double lost = scale < 0x1p-99 ? greatest * 0x1p-100 : 0;
    return std::max(lost, std::max(relative * std::abs(x), absolute * scale) + scale * greatest * 0x1p-23);
  };
  switch (format) {
    case WireFormat::kInt8B32:
    case WireFormat::kInt8B128:
    case WireFormat::kInt8B256:
      return block_bound(127, 0, 0.5);
    case WireFormat::kInt6B32:
      return block_bound(31, 0, 0.5);
    case WireFormat::kInt4B32:
      return block_bound(7, 0, 0.5);
    case WireFormat::kFp8E4M3B32:
      return block_bound(448, 0x1p-4, 0x1p-10);
    case WireFormat::kBf16:
      return std::max(0x1p-8 * std::abs(x), 0x1p-134);
    case WireFormat::kFp16:
      return std::max(0x1p-11 * std::abs(x), 0x1p-25);
    case WireFormat::kFp32:
      return 0;
    case WireFormat::kTop2P15:
    case WireFormat::kTop2P31:
      return largest * (1 + 0x1p-8);
    case WireFormat::kVar6:
    case WireFormat::kVar5:
    case WireFormat::kVar4:
    case WireFormat::kVar3:
      break;
  }
  return std::nan("");
}

// The same for x in a message of a variable format: half its step, plus the rounding of the product with the inverse.
inline double variable_bound(const Bytes& message, double x) {
  const auto step = static_cast<uint16_t>(message[0] | message[1] << 8);
  return 0.5 * codec::wire::scale_value(step) + std::abs(x) * 0x1p-22;
}

// From here on a finite number may decode as Inf: half a step below the first number beyond the format's range.
inline double overflow_threshold(WireFormat format) {
  return format == WireFormat::kFp16 ? 65504.0 : std::numeric_limits<float>::max() * (1 - 0x1p-4);
}

}  // namespace narrowcast::test
