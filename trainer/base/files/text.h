// UTF-8 (RFC 3629) to code points and back, and text that others wrote as messages show it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

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

// The longest message that a program prints about an error, in bytes.
inline constexpr size_t kLongestMessage = 4096;

// The longest name or value in a message that compares several, in bytes.
inline constexpr size_t kLongestCompared = 300;

// Names, values and errors that come from files, from other ranks, from workers and from the command line may hold
// control characters, which a terminal obeys: none may reach it.

// `text` as one line of UTF-8 that a terminal only shows: \n, \t and \r for line feed, tabulator and carriage return;
// \x1b for other control characters of ASCII and for bytes that are no UTF-8; \u202e for control characters beyond
// ASCII and those that reorder text. A backslash stays as it is, so that what is printable already does not change. Of
// a text that would be longer than `most` bytes, beginning and end are shown and it is said how long it is: "abc
// [2000000 bytes] xyz".
std::string printable(std::string_view text, size_t most = kLongestMessage);

// Does the same to a text of many lines: line feeds and tabulators stay, and nothing is left out.
std::string printable_text(std::string_view text);

// A name or a value in the middle of a message, as printable() has it: in single quotes, with single quotes and
// backslashes in it behind a backslash, and at most 202 bytes long.
std::string in_quotes(std::string_view text);

// Ranks in a message: "rank 1", "ranks 1, 2".
std::string describe_ranks(const std::vector<int64_t>& ranks);

}  // namespace narrowcast
