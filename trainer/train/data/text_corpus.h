// Text as tokens, one per character: which files it is read from, the vocabulary, and the corpus.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace narrowcast::data {

// Suffixes of the files that are taken from folders.
const std::vector<std::string_view>& text_suffixes();

// The text files that `paths` stand for. A file stands for itself, whatever its name. A folder stands for the
// regular files in it and in the folders below it that have one of text_suffixes(), sorted by path; names that
// begin with a dot are left out (files and folders), and folders behind symbolic links are not entered. Throws
// c10::ValueError naming the path if there is no such file or folder, a folder cannot be read or holds no such
// file, or if there are no paths.
std::vector<std::string> list_text_files(const std::vector<std::string>& paths);

// The text that is used where none is given: 1,115,394 characters of plays by William Shakespeare (data/README.md).
inline constexpr const char* kDefaultTextFile = "tinyshakespeare.txt";

// The path of that file: ../share/narrowcast/data beside an installed program, else the project's folder `data`.
std::string default_text_path();

// The absolute path of the project's folder at the time of the build. The folder may be gone. source_folder.cpp.in
// defines it.
extern const char* const kSourceFolder;

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

  // int64 [1], the prompt of a line's beginning: the end of the line before it. The first character stands in where
  // there are no lines.
  at::Tensor line_start() const;

  // int64 [n], each in 0..size()-1 -> UTF-8 text. Throws c10::ValueError naming another value.
  std::string decode(const at::Tensor& tokens) const;

 private:
  std::vector<std::string> entries_;
  std::unordered_map<char32_t, int64_t> tokens_;
};

// The characters (code points) of a text and the vocabulary they make up, sorted by code point.
class TextCorpus {
 public:
  // The code points of a text; `name` is for messages. Throws c10::ValueError if there are none.
  TextCorpus(std::u32string_view text, std::string name);

  // The files that list_text_files gives for `paths`, one after the other with nothing between. Files of a folder
  // that hold a zero byte are binary and are left out. Throws c10::ValueError naming the path for a file or folder
  // that cannot be read, or if there is no text at all; CorruptInputError naming the file and the byte offset for
  // text that is not UTF-8.
  static TextCorpus from_paths(const std::vector<std::string>& paths);

  // The same text in the tokens of another vocabulary, for example a trained model's. Throws c10::ValueError naming
  // the first of its characters (by code point) that the vocabulary lacks.
  TextCorpus in_vocabulary(Vocabulary vocabulary) const;

  // What the text was read from, for messages: the name, or the first path and how many more.
  const std::string& name() const { return name_; }
  // Returns the hash of the characters as they were read, whatever the vocabulary: one text has one, in one file or in
  // several.
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

// The conditional entropy in nats of a token given the one before it, with the text's own counts as
// probabilities (Shannon 1948, F_2): -sum over pairs (a, b) of c(a, b) / n * ln(c(a, b) / c(a)), where c(a, b)
// counts the n = tokens - 1 adjacent pairs and c(a) those that begin with a. It is the smallest mean cross entropy
// that a predictor which sees one token can reach on this text. 0 for fewer than two tokens.
double bigram_entropy(std::span<const int32_t> tokens);

}  // namespace narrowcast::data
