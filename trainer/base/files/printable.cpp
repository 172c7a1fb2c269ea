#include "trainer/base/files/printable.h"

#include <algorithm>
#include <cstdint>
#include <iomanip>
#include <sstream>

#include "trainer/base/files/utf8.h"

namespace narrowcast {
namespace {

constexpr size_t kLongestQuote = 200;

// Of Unicode: C1, which some terminals obey as they do ESC; what separates lines; what changes the direction of text.
bool is_control(char32_t value) {
  return value < 0x20 || (value >= 0x7f && value <= 0x9f) || value == 0x061c || value == 0x200e || value == 0x200f ||
         (value >= 0x2028 && value <= 0x202e) || (value >= 0x2066 && value <= 0x2069);
}

std::string in_hex(std::string_view prefix, uint32_t value, int digits) {
  std::ostringstream text;
  text << prefix << std::hex << std::setfill('0') << std::setw(digits) << value;
  return text.str();
}

std::string escape_of(char32_t control) {
  switch (control) {
    case '\n':
      return "\\n";
    case '\t':
      return "\\t";
    case '\r':
      return "\\r";
    default:
      return control < 0x80 ? in_hex("\\x", control, 2) : in_hex("\\u", control, 4);
  }
}

// With a backslash before each of the `special` characters.
std::string escaped(std::string_view text, std::string_view special) {
  std::string shown;
  while (!text.empty()) {
    const auto first = first_code_point(text);
    const std::string_view bytes = text.substr(0, first ? first->length : 1);
    if (!first.has_value()) {
      shown += in_hex("\\x", static_cast<unsigned char>(text[0]), 2);
    } else if (is_control(first->value)) {
      shown += escape_of(first->value);
    } else {
      shown.append(special.find(bytes) == std::string_view::npos ? "" : "\\").append(bytes);
    }
    text.remove_prefix(bytes.size());
  }
  return shown;
}

// No text becomes shorter by escaping, so half of `most` bytes of each end are enough.
std::string shown(std::string_view text, size_t most, std::string_view special) {
  if (text.size() <= most) {
    std::string whole = escaped(text, special);
    if (whole.size() <= most) {
      return whole;
    }
  }
  const std::string note = " [" + std::to_string(text.size()) + " bytes] ";
  const size_t half = (most - std::min(most, note.size())) / 2;
  const size_t read = std::min(most, text.size());
  std::string cut(first_characters(escaped(text.substr(0, read), special), half));
  return cut.append(note).append(last_characters(escaped(text.substr(text.size() - read), special), half));
}

}  // namespace

std::string printable(std::string_view text, size_t most) { return shown(text, most, ""); }

std::string printable_text(std::string_view text) {
  std::string shown;
  while (!text.empty()) {
    const size_t end = std::min(text.find_first_of("\n\t"), text.size());
    shown.append(escaped(text.substr(0, end), "")).append(text.substr(end, 1));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return shown;
}

std::string in_quotes(std::string_view text) {
  std::string quote = "'";
  return quote.append(shown(text, kLongestQuote, "'\\")).append("'");
}

}  // namespace narrowcast
