#include "trainer/train/data/vocabulary.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <set>
#include <utility>

#include "trainer/base/files/text.h"

namespace narrowcast::data {

Vocabulary::Vocabulary(std::vector<std::string> entries) : entries_(std::move(entries)) {
  for (size_t i = 0; i < entries_.size(); ++i) {
    const DecodedUtf8 decoded = decode_utf8(entries_[i]);
    TORCH_CHECK_VALUE(!decoded.first_bad_byte && decoded.code_points.size() == 1, "vocabulary: entry ", i, ", ",
                      in_quotes(entries_[i]), ", is not one character");
    const bool is_new = tokens_.emplace(decoded.code_points[0], i).second;
    TORCH_CHECK_VALUE(is_new, "vocabulary: entry ", i, ", ", in_quotes(entries_[i]), ", occurs twice");
  }
}

Vocabulary Vocabulary::of_text(std::u32string_view text) {
  const std::set<char32_t> characters(text.begin(), text.end());
  std::vector<std::string> entries;
  for (const char32_t character : characters) {
    entries.push_back(encode_utf8({&character, 1}));
  }
  return Vocabulary(std::move(entries));
}

int64_t Vocabulary::token(char32_t character) const {
  const auto entry = tokens_.find(character);
  return entry == tokens_.end() ? -1 : entry->second;
}

at::Tensor Vocabulary::encode(std::string_view text) const {
  const DecodedUtf8 decoded = decode_utf8(text);
  TORCH_CHECK_VALUE(!decoded.first_bad_byte, "text: is not UTF-8 at byte ", decoded.first_bad_byte.value_or(0));
  std::vector<int64_t> tokens;
  for (size_t i = 0; i < decoded.code_points.size(); ++i) {
    const std::u32string_view character(&decoded.code_points[i], 1);
    tokens.push_back(token(character[0]));
    TORCH_CHECK_VALUE(tokens.back() >= 0, "text: the character ", in_quotes(encode_utf8(character)), " at byte ",
                      encode_utf8(decoded.code_points.substr(0, i)).size(), " is not in the vocabulary of ", size(),
                      " characters");
  }
  return at::tensor(tokens, at::kLong);
}

std::string Vocabulary::decode(const at::Tensor& tokens) const {
  TORCH_CHECK_VALUE(tokens.dim() == 1 && tokens.scalar_type() == at::kLong, "tokens must be int64 of 1 dimension, but ",
                    "are ", tokens.scalar_type(), " ", tokens.sizes());
  const at::Tensor contiguous = tokens.contiguous();
  std::string text;
  for (const int64_t token : at::IntArrayRef(contiguous.const_data_ptr<int64_t>(), contiguous.numel())) {
    TORCH_CHECK_VALUE(token >= 0 && token < size(), "tokens must be in 0..", size() - 1, ", but one is ", token);
    text += entries_[static_cast<size_t>(token)];
  }
  return text;
}

}  // namespace narrowcast::data
