#include "tests/fuzz/mutator.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <string_view>
#include <utility>

namespace narrowcast::fuzz {
namespace {

constexpr size_t kLongest = 1 << 16;

// Numbers at which readers of numbers often fail.
constexpr uint64_t kNumbers[] = {0,          1,
                                 0x7F,       0x80,
                                 0xFF,       0x7FFF,
                                 0x8000,     0xFFFF,
                                 0x7FFFFFFF, 0x80000000,
                                 0xFFFFFFFF, uint64_t{1} << 32,
                                 INT64_MAX,  uint64_t{1} << 63,
                                 UINT64_MAX, uint64_t{1} << 61,
                                 100'000'001};

// Texts at which readers of text often fail.
constexpr std::string_view kTexts[] = {"{",
                                       "}",
                                       "[",
                                       "]",
                                       "\"",
                                       ":",
                                       ",",
                                       "-1",
                                       "0",
                                       "1e999",
                                       "null",
                                       "true",
                                       "NaN",
                                       "\\u",
                                       "\\ud800",
                                       "\xff",
                                       "\xc3",
                                       "\xed\xa0\x80",
                                       "\r\n",
                                       "\n",
                                       "9223372036854775808",
                                       "-9223372036854775808",
                                       "18446744073709551616",
                                       "99999999999999999999999",
                                       "0.5",
                                       "[1-99999]",
                                       "\xe2\x80\xae",
                                       "\x1b[2J",
                                       "=",
                                       "--"};

}  // namespace

Mutator::Mutator(std::vector<std::string> seeds, uint64_t random_seed)
    : seeds_(std::move(seeds)), random_(random_seed) {}

std::string Mutator::next() {
  std::string text = seeds_[below(seeds_.size())];
  for (uint64_t change_count = below(2) == 0 ? 1 : below(8) + 1; change_count > 0; --change_count) change(text);
  text.resize(std::min(text.size(), kLongest));
  return text;
}

void Mutator::change(std::string& text) {
  switch (below(5)) {
    case 0:
      return overwrite(text);
    case 1:
      return insert(text);
    case 2:
      return erase(text);
    case 3:
      return renumber(text);
    default:
      return splice(text);
  }
}

// Overwrites a bit, a byte, or a number of 1, 2, 4 or 8 bytes in either byte order.
void Mutator::overwrite(std::string& text) {
  if (text.empty()) return;
  const size_t at = below(text.size());
  switch (below(3)) {
    case 0:
      text[at] = static_cast<char>(text[at] ^ (1 << below(8)));
      return;
    case 1:
      text[at] = static_cast<char>(below(256));
      return;
    default: {
      const uint64_t number = kNumbers[below(std::size(kNumbers))];
      char bytes[sizeof(number)];
      std::memcpy(bytes, &number, sizeof(number));
      const size_t size = std::min<size_t>(size_t{1} << below(4), text.size() - at);
      if (below(2) == 0) std::reverse(bytes, bytes + size);
      std::memcpy(text.data() + at, bytes, size);
    }
  }
}

void Mutator::insert(std::string& text) {
  if (below(2) == 0) {
    text.insert(place(text), kTexts[below(std::size(kTexts))]);
  } else {
    text.insert(place(text), below(16) + 1, static_cast<char>(below(256)));
  }
}

void Mutator::erase(std::string& text) {
  const size_t at = place(text);
  text.erase(at, below(2) == 0 ? below(8) : below(text.size() + 1));
}

// Replaces a part of the text by a part of a seed.
void Mutator::splice(std::string& text) {
  const std::string& other = seeds_[below(seeds_.size())];
  const size_t from = place(other);
  const size_t at = place(text);
  text.replace(at, below(text.size() - at + 1), other.substr(from, below(other.size() - from + 1)));
}

// Replaces a decimal number by another one, or by other text that number parsers may see.
void Mutator::renumber(std::string& text) {
  constexpr std::string_view kDigits = "0123456789";
  constexpr std::string_view kOthers[] = {"0",     "1",          "2",          "3",
                                          "4",     "9",          "-1",         "65537",
                                          "null",  "4294967296", "0.5",        "9223372036854775807",
                                          "1e999", "\"1\"",      "2147483648", "18446744073709551616"};
  const size_t begin = text.find_first_of(kDigits, place(text));
  if (begin == std::string::npos) return;
  const size_t end = std::min(text.find_first_not_of(kDigits, begin), text.size());
  text.replace(begin, end - begin, kOthers[below(std::size(kOthers))]);
}

}  // namespace narrowcast::fuzz
