#include "trainer/train/data/text_corpus.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>
#include <system_error>
#include <unordered_map>
#include <utility>

#include <narrowcast/errors.h>
#include "ops/common/text.h"
#include "trainer/base/files/hash.h"
#include "trainer/base/files/open_file.h"

namespace narrowcast::data {
namespace {

namespace fs = std::filesystem;

bool is_hidden(const fs::path& path) { return path.filename().string().starts_with('.'); }

bool has_text_suffix(const fs::path& path) {
  const std::string suffix = path.extension();
  return std::find(text_suffixes().begin(), text_suffixes().end(), suffix) != text_suffixes().end();
}

// Goes to the next entry. The exception of ++entry does not name the folder that could not be read: `entry` itself or
// its parent.
void step(fs::recursive_directory_iterator& entry) {
  const bool enters = entry.recursion_pending() && !entry->is_symlink() && entry->is_directory();
  const fs::path read = enters ? entry->path() : entry->path().parent_path();
  std::error_code error;
  entry.increment(error);
  if (error) {
    throw fs::filesystem_error("cannot list", read, error);
  }
}

std::vector<std::string> text_files_below(const std::string& folder) {
  std::vector<std::string> files;
  for (fs::recursive_directory_iterator entry(folder), end; entry != end; step(entry)) {
    if (is_hidden(entry->path())) {
      entry.disable_recursion_pending();
    } else if (entry->is_regular_file() && has_text_suffix(entry->path())) {
      files.push_back(entry->path());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::vector<std::string> list_folder(const std::string& folder) {
  try {
    return text_files_below(folder);
  } catch (const fs::filesystem_error& error) {
    TORCH_CHECK_VALUE(false, error.path1().string(), ": cannot be read: ", error.code().message());
  }
}

std::u32string decode(std::string_view text, const std::string& name) {
  DecodedUtf8 decoded = decode_utf8(text);
  NARROWCAST_CHECK_INPUT(!decoded.first_bad_byte, name, ": is not UTF-8 text: byte ", *decoded.first_bad_byte,
                         " does not continue it");
  return std::move(decoded.code_points);
}

bool is_binary(std::string_view content) { return content.find('\0') != std::string_view::npos; }

}  // namespace

const std::vector<std::string_view>& text_suffixes() {
  static const std::vector<std::string_view> suffixes = {
      ".c",  ".cc", ".cmake", ".cpp", ".css", ".cu",  ".cuh",  ".go",   ".h",  ".hpp", ".html", ".java", ".js",
      ".md", ".py", ".rs",    ".rst", ".sh",  ".tex", ".text", ".toml", ".ts", ".txt", ".yaml", ".yml",
  };
  return suffixes;
}

std::vector<std::string> list_text_files(const std::vector<std::string>& paths) {
  TORCH_CHECK_VALUE(!paths.empty(), "data: no file or folder is given");
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    std::error_code error;
    if (!fs::is_directory(path, error)) {
      const char* const hint = paths.size() > 1 ? "; a comma within a path is written \\," : "";
      TORCH_CHECK_VALUE(fs::exists(path, error), path, ": does not exist", hint);
      files.push_back(path);
      continue;
    }
    const std::vector<std::string> found = list_folder(path);
    TORCH_CHECK_VALUE(!found.empty(), path, ": holds no text file (a file with one of the suffixes ",
                      c10::Join(" ", text_suffixes()), ")");
    files.insert(files.end(), found.begin(), found.end());
  }
  return files;
}

std::string default_text_path() {
  const fs::path prefix = fs::read_symlink("/proc/self/exe").parent_path().parent_path();
  const fs::path installed = prefix / "share/narrowcast/data" / kDefaultTextFile;
  return fs::exists(installed) ? installed : fs::path(kSourceFolder) / "data" / kDefaultTextFile;
}

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

at::Tensor Vocabulary::line_start() const { return at::full({1}, std::max<int64_t>(0, token(U'\n')), at::kLong); }

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

TextCorpus TextCorpus::from_paths(const std::vector<std::string>& paths) {
  TORCH_CHECK_VALUE(!paths.empty(), "data: no file or folder is given");
  std::u32string text;
  list_text_files(paths);  // Reports missing paths before anything is read.
  for (const std::string& path : paths) {
    std::error_code ignored;
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
