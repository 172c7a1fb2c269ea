#include "trainer/base/files/utf8.h"

#include <algorithm>
#include <array>
#include <cstdint>

namespace narrowcast {
namespace {

// One form of UTF-8: sequences of `length` bytes, whose first byte has the bits `lead` under `lead_mask`,
// for code points from `least` on.
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

}  // namespace narrowcast
