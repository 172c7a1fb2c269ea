// Text that other programs have tokenized: files that contain only tokens, as nanoGPT and llm.c write them.
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

// The layout of a file's tokens; all little-endian.
enum class TokenLayout {
  kRaw,     // nanoGPT: uint16 from the first byte on
  kGpt2,    // llm.c: 256 int32, magic number 20240520, version 1, the number of tokens, and 253 unused ones; then
            // uint16
  kLlama3,  // llm.c: the same with the magic number 20240801, version 7 and uint32
};

// A mapped file of tokens. Files named train.bin and val.bin are llm.c's if they begin with one of its magic numbers,
// else nanoGPT's; all others are llm.c's. The magic numbers cannot be tokens of GPT-2: the first token would be 55432
// or 55713, of 50257.
class TokenFile {
 public:
  // Throws c10::ValueError naming the path if it cannot be read. Throws CorruptInputError naming the path, the byte and
  // the value there for a wrong magic number or version, a wrong number of tokens, an incomplete token, or no tokens at
  // all.
  explicit TokenFile(const std::string& path);

  const std::string& path() const { return file_->path(); }
  const files::MappedFile& file() const { return *file_; }
  TokenLayout layout() const { return layout_; }
  // Number of tokens, >= 1.
  int64_t size() const { return size_; }

  // The greatest of its tokens. Reads all of them.
  int64_t greatest() const;

  // Copies `count` tokens from the one at `begin` on; all must be in 0..size()-1. Throws CorruptInputError naming the
  // path, the byte and the token if one is not below `vocabulary_size`.
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
  // The greatest token of all files. Reads all of them.
  int64_t greatest_token() const;

 private:
  std::string name_;
  std::vector<TokenFile> training_;
  std::vector<TokenFile> validation_;
};

// Options that a TokenFolder does not determine.
struct TokenOptions {
  int64_t context = 1;          // 1..2^32
  int64_t vocabulary_size = 1;  // the bound of all tokens, checked for each batch
};

// Samples are windows of context + 1 tokens, as in TextDataset, each within one file. Training windows begin at every
// token of a training file; held-out ones follow each other in the validation files. A batch throws CorruptInputError
// as TokenFile::copy does.
class TokenDataset : public Dataset {
 public:
  // Throws c10::ValueError for another context, and naming folder and context if no file of a part is longer than the
  // context.
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
