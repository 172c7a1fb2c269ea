// Text that others wrote, in messages: names, values and errors that come from files, from other ranks, from workers
// and from the command line. A terminal obeys control characters, so none may reach it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace narrowcast {

// The longest message that a program prints about an error, in bytes.
inline constexpr size_t kLongestMessage = 4096;

// `text` as one line of UTF-8 that a terminal only shows: \n, \t and \r for line feed, tabulator and carriage return;
// \x1b for other control characters of ASCII and for bytes that are no UTF-8; \u202e for control characters beyond
// ASCII and those that reorder text. A backslash stays as it is, so that what is printable already does not change. Of
// a text that would be longer than `most` bytes, beginning and end are shown and it is said how long it is: "abc
// [2000000 bytes] xyz".
std::string printable(std::string_view text, size_t most = kLongestMessage);

// The same for a text of many lines: line feeds and tabulators stay, and nothing is left out.
std::string printable_text(std::string_view text);

// A name or a value in the middle of a message, as printable() has it: in single quotes, with single quotes and
// backslashes in it behind a backslash, and at most 202 bytes long.
std::string in_quotes(std::string_view text);

}  // namespace narrowcast
