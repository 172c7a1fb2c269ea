// Text as tokens, one per character: its files, the vocabulary, and the corpus.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace narrowcast::data {

// The suffixes of text files in folders.
const std::vector<std::string_view>& text_suffixes();

// The text files of `paths`. A path of a file stands for that file, whatever its name. A folder stands for the regular
// files in it and its subfolders that have one of text_suffixes(), sorted by path. Files and folders whose names begin
// with a dot are left out, and folders behind symbolic links are not entered. Throws c10::ValueError naming the path if
// there is no such file or folder, or a folder cannot be read or has no such file. Throws it also if there are no
// paths.
std::vector<std::string> list_text_files(const std::vector<std::string>& paths);

// The default text: 1,115,394 characters of plays by William Shakespeare (data/README.md).
inline constexpr const char* kDefaultTextFile = "tinyshakespeare.txt";

// The path of that file: ../share/narrowcast/data beside an installed program, else the project's folder `data`.
std::string default_text_path();

// The absolute path of the project's folder at the time of the build, defined in source_folder.cpp.in. The folder may
// no longer exist.
extern const char* const kSourceFolder;

// Token i stands for the i-th character (code point).
class Vocabulary {
 public:
  // One character in UTF-8 per entry, as in a model file. Throws c10::ValueError naming an entry that is not one
  // character or occurs twice.
  explicit Vocabulary(std::vector<std::string> entries);

  // The different characters of a text, sorted by code point.
  static Vocabulary of_text(std::u32string_view text);

  int64_t size() const { return static_cast<int64_t>(entries_.size()); }
  const std::vector<std::string>& entries() const { return entries_; }

  // The token of a character, or -1.
  int64_t token(char32_t character) const;

  // UTF-8 text -> int64 [characters]. Throws c10::ValueError naming the byte offset if the text is not UTF-8 or has a
  // character that is not in the vocabulary.
  at::Tensor encode(std::string_view text) const;

  // int64 [1]: the prompt for the beginning of a line, which is the line feed before it. If the vocabulary has no line
  // feed, it is the first character.
  at::Tensor line_start() const;

  // int64 [n], each in 0..size()-1 -> UTF-8 text. Throws c10::ValueError naming another value.
  std::string decode(const at::Tensor& tokens) const;

 private:
  std::vector<std::string> entries_;
  std::unordered_map<char32_t, int64_t> tokens_;
};

// The characters (code points) of a text and their vocabulary, sorted by code point.
class TextCorpus {
 public:
  // The code points of a text; `name` is for messages. Throws c10::ValueError if the text is empty.
  TextCorpus(std::u32string_view text, std::string name);

  // The files of list_text_files(paths), concatenated without separators. Files of a folder that contain a zero byte
  // are binary and are left out. Throws c10::ValueError naming the path of a file or folder that cannot be read, or if
  // the files contain no text. Throws CorruptInputError naming the file and the byte offset of text that is not UTF-8.
  static TextCorpus from_paths(const std::vector<std::string>& paths);

  // The same text in the tokens of another vocabulary, for example a trained model's. Throws c10::ValueError naming the
  // first of its characters (by code point) that the vocabulary lacks.
  TextCorpus in_vocabulary(Vocabulary vocabulary) const;

  // The source of the text, for messages: its name, or the first path and the number of others.
  const std::string& name() const { return name_; }
  // The hash of the characters as they were read. It does not depend on the vocabulary, or on how the text is divided
  // into files.
  uint64_t content_hash() const { return content_hash_; }
  const Vocabulary& vocabulary() const { return vocabulary_; }
  // One token per character.
  std::span<const int32_t> tokens() const { return tokens_; }
  int64_t characters() const { return static_cast<int64_t>(tokens_.size()); }

 private:
  std::string name_;
  uint64_t content_hash_;  // see base/files/hash.h
  Vocabulary vocabulary_;
  std::vector<int32_t> tokens_;
};

// The conditional entropy in nats of a token given the one before it, with the text's own counts as probabilities
// (Shannon 1948, F_2):
//
//   -sum over pairs (a, b) of c(a, b) / n * ln(c(a, b) / c(a))
//
// Here c(a, b) counts the pairs among the n = tokens - 1 adjacent ones, and c(a) counts the pairs that begin with a. It
// is the smallest mean cross entropy on this text of a predictor that sees one token. 0 for fewer than two tokens.
double bigram_entropy(std::span<const int32_t> tokens);

}  // namespace narrowcast::data
