// UTF-8 (RFC 3629) to code points and back.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace narrowcast {

// The code point at the start of a text.
struct FirstCodePoint {
  char32_t value;
  size_t length;  // in bytes
};

// Nothing if the text is empty or does not begin with one. What decode_utf8 refuses is none.
std::optional<FirstCodePoint> first_code_point(std::string_view text);

// Code points of a text, or where it stops being UTF-8.
struct DecodedUtf8 {
  std::u32string code_points;
  std::optional<size_t> first_bad_byte;  // offset; code_points then holds what comes before it
};

// Overlong forms, surrogates and values above U+10FFFF are not UTF-8.
DecodedUtf8 decode_utf8(std::string_view text);

// Each code point must be one: 0..0x10FFFF without 0xD800..0xDFFF.
std::string encode_utf8(std::u32string_view code_points);

// The first and the last bytes of a text, `most` or, so that no character is split, up to three less. What is no UTF-8
// there is cut at `most`.
std::string_view first_characters(std::string_view text, size_t most);
std::string_view last_characters(std::string_view text, size_t most);

}  // namespace narrowcast
