// Characters as tokens.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace narrowcast::data {

// Token i stands for the i-th character (code point).
class Vocabulary {
 public:
  // One character in UTF-8 per entry, as a model file holds them. Throws c10::ValueError naming an entry
  // that is not one character or occurs twice.
  explicit Vocabulary(std::vector<std::string> entries);

  // The different characters of a text, sorted by code point.
  static Vocabulary of_text(std::u32string_view text);

  int64_t size() const { return static_cast<int64_t>(entries_.size()); }
  const std::vector<std::string>& entries() const { return entries_; }

  // The token of a character, or -1.
  int64_t token(char32_t character) const;

  // UTF-8 text -> int64 [characters]. Throws c10::ValueError naming the byte offset if the text is not UTF-8
  // or has a character that is not in the vocabulary.
  at::Tensor encode(std::string_view text) const;

  // int64 [n], each in 0..size()-1 -> UTF-8 text. Throws c10::ValueError naming another value.
  std::string decode(const at::Tensor& tokens) const;

 private:
  std::vector<std::string> entries_;
  std::unordered_map<char32_t, int64_t> tokens_;
};

}  // namespace narrowcast::data
