// UTF-8 (RFC 3629) to code points and back, and the safe display of foreign text in messages.
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

// The first code point of a text; empty if the text is empty or begins with bytes that decode_utf8 refuses.
std::optional<FirstCodePoint> first_code_point(std::string_view text);

// The code points of a text, or the place where it stops being UTF-8.
struct DecodedUtf8 {
  std::u32string code_points;
  std::optional<size_t> first_bad_byte;  // offset; code_points then holds the text before it
};

// Overlong forms, surrogates and values above U+10FFFF are not UTF-8.
DecodedUtf8 decode_utf8(std::string_view text);

// Each code point must be valid: 0..0x10FFFF without 0xD800..0xDFFF.
std::string encode_utf8(std::u32string_view code_points);

// The first or the last bytes of a text: `most` bytes, or up to three fewer so that no character is split. Bytes that
// are not UTF-8 are cut at `most`.
std::string_view first_characters(std::string_view text, size_t most);
std::string_view last_characters(std::string_view text, size_t most);

// The longest message that a program prints about an error, in bytes.
inline constexpr size_t kLongestMessage = 4096;

// The longest name or value in a message that compares several, in bytes.
inline constexpr size_t kLongestCompared = 300;

// Names, values and errors from files, other ranks, workers and the command line may contain control characters, which
// a terminal obeys. None may reach a terminal.

// Returns `text` as one line of UTF-8 without control characters. Escapes:
//   - \n, \t, \r: line feed, tabulator, carriage return.
//   - \x1b: other control characters of ASCII, and bytes that are not UTF-8.
//   - \u202e: control characters beyond ASCII, and characters that reorder text.
//
// A backslash stays as it is, so printable text does not change. If the result would be longer than `most` bytes, it
// contains the text's beginning, its length and its end: "abc [2000000 bytes] xyz".
std::string printable(std::string_view text, size_t most = kLongestMessage);

// Escapes a text of many lines: line feeds and tabulators stay, and nothing is left out.
std::string printable_text(std::string_view text);

// A name or a value for the middle of a message: printable() in single quotes, at most 202 bytes long. Single quotes
// and backslashes in it are escaped with a backslash.
std::string in_quotes(std::string_view text);

// Ranks in a message: "rank 1", "ranks 1, 2".
std::string describe_ranks(const std::vector<int64_t>& ranks);

}  // namespace narrowcast
