// UTF-8 (RFC 3629) to code points and back.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "ops/export.h"

namespace narrowcast::data {

// Code points of a text, or where it stops being UTF-8.
struct DecodedUtf8 {
  std::u32string code_points;
  std::optional<size_t> first_bad_byte;  // offset; code_points then holds what comes before it
};

// Overlong forms, surrogates and values above U+10FFFF are not UTF-8.
NARROWCAST_EXPORT DecodedUtf8 decode_utf8(std::string_view text);

// Each code point must be one: 0..0x10FFFF without 0xD800..0xDFFF.
NARROWCAST_EXPORT std::string encode_utf8(std::u32string_view code_points);

}  // namespace narrowcast::data
