// Text that others have made tokens of: files of nothing but tokens, as nanoGPT and llm.c write them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trainer/train/data/dataset.h"
#include "trainer/train/data/text_dataset.h"
#include "trainer/train/files/mapped_file.h"

namespace narrowcast::data {

// How a file holds its tokens; all little-endian.
enum class TokenLayout {
  kRaw,     // nanoGPT: uint16 from the first byte on
  kGpt2,    // llm.c: 256 int32, magic number 20240520, version 1, the number of tokens, and 253 of no account; then
            // uint16
  kLlama3,  // llm.c: the same with the magic number 20240801, version 7 and uint32
};

// A file of tokens, left where it is. Files called train.bin and val.bin are llm.c's if they begin with one of its
// magic numbers, which as tokens of GPT-2 would be none (the first would be 55432 or 55713, of 50257), else nanoGPT's;
// all others are llm.c's.
class TokenFile {
 public:
  // Throws c10::ValueError naming the path if it cannot be read, and CorruptInputError naming the path, the byte and
  // the value there for a wrong magic number or version, another number of tokens than follow, a part of a token, and
  // no tokens at all.
  explicit TokenFile(const std::string& path);

  const std::string& path() const { return file_->path(); }
  const files::MappedFile& file() const { return *file_; }
  TokenLayout layout() const { return layout_; }
  // Tokens in it, >= 1.
  int64_t size() const { return size_; }

  // The greatest of its tokens. Reads all of them.
  int64_t greatest() const;

  // Copies `count` tokens from the one at `begin` on, all in 0..size()-1. Throws CorruptInputError naming the path, the
  // byte and the token if one of them is not below `vocabulary_size`.
  void copy(int64_t begin, int64_t count, int64_t vocabulary_size, int64_t* out) const;

 private:
  std::shared_ptr<const files::MappedFile> file_;
  TokenLayout layout_;
  int64_t begin_ = 0;  // byte of the first token
  int64_t size_ = 0;
};

// The token files of a folder (DataFormat::kTokens).
class TokenFolder {
 public:
  // Throws as list_files and TokenFile do, and CorruptInputError if two files have different layouts.
  explicit TokenFolder(const std::string& folder);

  const std::string& name() const { return name_; }
  const std::vector<TokenFile>& training() const { return training_; }
  const std::vector<TokenFile>& validation() const { return validation_; }

  // Returns the hash of all files (files::sampled_hash).
  uint64_t content_hash() const;
  // The greatest token of all files, which are read for it.
  int64_t greatest_token() const;

 private:
  std::string name_;
  std::vector<TokenFile> training_;
  std::vector<TokenFile> validation_;
};

// What a TokenFolder does not say.
struct TokenOptions {
  int64_t context = 1;          // 1..2^32
  int64_t vocabulary_size = 1;  // all tokens are below it, as each batch is asked
};

// Samples are windows of context + 1 tokens as those of a text are (TextDataset), each within one file: training ones
// begin at every token of a training file, held-out ones follow each other in the validation files. A batch throws
// CorruptInputError as TokenFile::copy does.
class TokenDataset : public Dataset {
 public:
  // Throws c10::ValueError for another context, and naming folder and context if no file of a part is longer than that.
  TokenDataset(TokenFolder folder, const TokenOptions& options);

  int64_t training_size() const override { return training_.size(); }
  int64_t held_out_size() const override { return held_out_.size(); }
  models::Batch training_batch(at::IntArrayRef indices) const override;
  models::Batch held_out_batch(at::IntArrayRef indices) const override;
  std::optional<int64_t> class_bound() const override;

 private:
  models::Batch batch(const std::vector<TokenFile>& files, const std::vector<WindowStart>& starts) const;

  TokenFolder folder_;
  TokenOptions options_;
  Windows training_;
  Windows held_out_;
};

}  // namespace narrowcast::data
