#include "trainer/train/data/text_corpus.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <cmath>
#include <filesystem>
#include <system_error>
#include <unordered_map>
#include <utility>

#include <narrowcast/errors.h>
#include "trainer/base/files/hash.h"
#include "trainer/base/files/open_file.h"
#include "trainer/base/files/text.h"
#include "trainer/train/data/text_files.h"

namespace narrowcast::data {
namespace {

std::u32string decode(std::string_view text, const std::string& name) {
  DecodedUtf8 decoded = decode_utf8(text);
  NARROWCAST_CHECK_INPUT(!decoded.first_bad_byte, name, ": is not UTF-8 text: byte ", *decoded.first_bad_byte,
                         " does not continue it");
  return std::move(decoded.code_points);
}

bool is_binary(std::string_view content) { return content.find('\0') != std::string_view::npos; }

}  // namespace

TextCorpus::TextCorpus(std::u32string_view text, std::string name)
    : name_(std::move(name)),
      content_hash_(hash_of_content({reinterpret_cast<const char*>(text.data()), text.size() * sizeof(char32_t)})),
      vocabulary_(Vocabulary::of_text(text)) {
  TORCH_CHECK_VALUE(!text.empty(), name_, ": holds no text");
  tokens_.reserve(text.size());
  for (const char32_t character : text) {
    tokens_.push_back(static_cast<int32_t>(vocabulary_.token(character)));
  }
}

TextCorpus TextCorpus::from_text(std::string_view text, const std::string& name) {
  return TextCorpus(decode(text, name), name);
}

TextCorpus TextCorpus::from_paths(const std::vector<std::string>& paths) {
  TORCH_CHECK_VALUE(!paths.empty(), "data: no file or folder is given");
  std::u32string text;
  for (const std::string& path : paths) {
    std::error_code ignored;  // what is not there is reported by list_text_files
    const bool is_folder = std::filesystem::is_directory(path, ignored);
    for (const std::string& file : list_text_files({path})) {
      const std::string content = files::read_file(file);
      if (!is_folder || !is_binary(content)) {
        text += decode(content, file);
      }
    }
  }
  const std::string others = paths.size() > 1 ? c10::str(" and ", paths.size() - 1, " more") : "";
  return TextCorpus(text, paths.front() + others);
}

TextCorpus TextCorpus::in_vocabulary(Vocabulary vocabulary) const {
  std::vector<int32_t> translation;
  for (const std::string& character : vocabulary_.entries()) {
    const int64_t token = vocabulary.token(decode(character, name_).front());
    TORCH_CHECK_VALUE(token >= 0, name_, ": the character ", in_quotes(character),
                      " is not in the model's vocabulary of ", vocabulary.size(), " characters");
    translation.push_back(static_cast<int32_t>(token));
  }
  TextCorpus translated = *this;
  translated.vocabulary_ = std::move(vocabulary);
  for (int32_t& token : translated.tokens_) {
    token = translation[static_cast<size_t>(token)];
  }
  return translated;
}

double bigram_entropy(std::span<const int32_t> tokens) {
  if (tokens.size() < 2) {
    return 0;
  }
  std::unordered_map<int64_t, int64_t> pairs;
  std::unordered_map<int32_t, int64_t> firsts;
  for (size_t i = 0; i + 1 < tokens.size(); ++i) {
    ++pairs[int64_t{tokens[i]} << 32 | tokens[i + 1]];
    ++firsts[tokens[i]];
  }
  double sum = 0;
  for (const auto& [pair, count] : pairs) {
    const auto of_first = static_cast<double>(firsts[static_cast<int32_t>(pair >> 32)]);
    sum -= static_cast<double>(count) * std::log(static_cast<double>(count) / of_first);
  }
  return sum / static_cast<double>(tokens.size() - 1);
}

}  // namespace narrowcast::data
