#include "ops/common/text.h"

#include <algorithm>
#include <array>
#include <iomanip>
#include <sstream>

namespace narrowcast {
namespace {

// A form of UTF-8: sequences of `length` bytes for code points from `least` on. Their first byte, masked by
// `lead_mask`, equals `lead`.
struct Form {
  size_t length;
  unsigned char lead;
  unsigned char lead_mask;
  char32_t least;
};

constexpr std::array<Form, 4> kForms = {{
    {1, 0x00, 0x80, 0x0},
    {2, 0xc0, 0xe0, 0x80},
    {3, 0xe0, 0xf0, 0x800},
    {4, 0xf0, 0xf8, 0x10000},
}};

constexpr char32_t kLargest = 0x10ffff;

bool is_code_point(char32_t value) { return value <= kLargest && (value < 0xd800 || value > 0xdfff); }

void append_one(char32_t code_point, std::string& text) {
  size_t form = kForms.size() - 1;
  while (code_point < kForms[form].least) {
    --form;
  }
  for (size_t i = 0; i < kForms[form].length; ++i) {
    const char32_t bits = code_point >> (6 * (kForms[form].length - 1 - i));
    const char32_t byte = i == 0 ? kForms[form].lead | bits : 0x80 | (bits & 0x3f);
    text.push_back(static_cast<char>(byte));
  }
}

bool continues_a_character(std::string_view text, size_t position) {
  return position < text.size() && (static_cast<unsigned char>(text[position]) & 0xc0) == 0x80;
}

constexpr size_t kLongestQuote = 200;

// ASCII's control characters; C1 controls, which some terminals obey as they obey ESC; line separators; and characters
// that change the direction of text.
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

// Escapes control characters, and puts a backslash before each of the `special` characters.
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

// Escaping never shortens a text, so `most` bytes of each end are enough.
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

std::optional<FirstCodePoint> first_code_point(std::string_view text) {
  if (text.empty()) {
    return std::nullopt;
  }
  const auto first = static_cast<unsigned char>(text[0]);
  for (const Form& form : kForms) {
    if ((first & form.lead_mask) != form.lead) {
      continue;
    }
    char32_t value = first & static_cast<unsigned char>(~form.lead_mask);
    for (size_t i = 1; i < form.length; ++i) {
      if (!continues_a_character(text, i)) {
        return std::nullopt;
      }
      value = value << 6 | (static_cast<unsigned char>(text[i]) & 0x3f);
    }
    const bool is_valid = value >= form.least && is_code_point(value);
    return is_valid ? std::optional(FirstCodePoint{value, form.length}) : std::nullopt;
  }
  return std::nullopt;
}

DecodedUtf8 decode_utf8(std::string_view text) {
  DecodedUtf8 result;
  result.code_points.reserve(text.size());
  for (size_t offset = 0; offset < text.size();) {
    const auto decoded = first_code_point(text.substr(offset));
    if (!decoded) {
      result.first_bad_byte = offset;
      break;
    }
    result.code_points.push_back(decoded->value);
    offset += decoded->length;
  }
  return result;
}

std::string encode_utf8(std::u32string_view code_points) {
  std::string text;
  text.reserve(code_points.size());
  for (const char32_t code_point : code_points) {
    append_one(code_point, text);
  }
  return text;
}

std::string_view first_characters(std::string_view text, size_t most) {
  if (most >= text.size()) {
    return text;
  }
  for (size_t less = 0; less < std::min(most + 1, kForms.size()); ++less) {
    if (!continues_a_character(text, most - less)) {
      return text.substr(0, most - less);
    }
  }
  return text.substr(0, most);
}

std::string_view last_characters(std::string_view text, size_t most) {
  if (most >= text.size()) {
    return text;
  }
  const size_t begin = text.size() - most;
  for (size_t less = 0; less < std::min(most + 1, kForms.size()); ++less) {
    if (!continues_a_character(text, begin + less)) {
      return text.substr(begin + less);
    }
  }
  return text.substr(begin);
}

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

std::string describe_ranks(const std::vector<int64_t>& ranks) {
  std::string text;
  for (const int64_t rank : ranks) {
    text.append(text.empty() ? "" : ", ").append(std::to_string(rank));
  }
  return (ranks.size() == 1 ? "rank " : "ranks ") + text;
}

}  // namespace narrowcast
