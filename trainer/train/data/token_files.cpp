#include "trainer/train/data/token_files.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <utility>

#include <narrowcast/errors.h>
#include "trainer/base/files/hash.h"
#include "trainer/train/data/data_folder.h"

namespace narrowcast::data {
namespace {

static_assert(std::endian::native == std::endian::little, "tokens are copied as the files have them");

constexpr int64_t kHeaderBytes = 256 * sizeof(int32_t);
constexpr int64_t kVersionAt = 4;
constexpr int64_t kCountAt = 8;

// What llm.c writes before tokens.
struct LayoutRow {
  TokenLayout layout;
  int32_t magic;
  int32_t version;
};

constexpr std::array<LayoutRow, 2> kLayouts = {
    {{TokenLayout::kGpt2, 20240520, 1}, {TokenLayout::kLlama3, 20240801, 7}}};

int64_t token_bytes(TokenLayout layout) { return layout == TokenLayout::kLlama3 ? 4 : 2; }

template <class Number>
Number stored_at(std::string_view bytes, int64_t offset) {
  Number number;
  std::memcpy(&number, bytes.data() + offset, sizeof(number));
  return number;
}

// The row whose magic number the file begins with, or none.
const LayoutRow* layout_row_of(const files::MappedFile& file) {
  if (file.size() < kVersionAt) {
    return nullptr;
  }
  const auto magic = stored_at<int32_t>(file.bytes(), 0);
  const auto* const row = std::ranges::find(kLayouts, magic, &LayoutRow::magic);
  return row == kLayouts.end() ? nullptr : row;
}

bool may_be_raw(const std::string& path) {
  const std::string name = std::filesystem::path(path).filename().string();
  return name == "train.bin" || name == "val.bin";
}

// Checks the header and returns the number of tokens that it says.
int64_t read_header(const files::MappedFile& file, const LayoutRow& row) {
  NARROWCAST_CHECK_INPUT(file.size() >= kHeaderBytes, file.path(), ": byte ", file.size(),
                         ": the file ends before its header of ", kHeaderBytes, " bytes does");
  const auto version = stored_at<int32_t>(file.bytes(), kVersionAt);
  NARROWCAST_CHECK_INPUT(version == row.version, file.path(), ": byte ", kVersionAt, ": has the version ", version,
                         ", but tokens with the magic number ", row.magic, " have ", row.version);
  return stored_at<int32_t>(file.bytes(), kCountAt);
}

template <class Token>
int64_t greatest_of(std::string_view bytes) {
  Token greatest = 0;
  for (size_t at = 0; at < bytes.size(); at += sizeof(Token)) {
    greatest = std::max(greatest, stored_at<Token>(bytes, static_cast<int64_t>(at)));
  }
  return greatest;
}

template <class Token>
void copy_tokens(std::string_view bytes, int64_t* out) {
  for (size_t at = 0; at < bytes.size(); at += sizeof(Token)) {
    *out++ = stored_at<Token>(bytes, static_cast<int64_t>(at));
  }
}

std::vector<TokenFile> open_all(const std::vector<std::string>& paths) {
  std::vector<TokenFile> files;
  for (const std::string& path : paths) {
    files.emplace_back(path);
  }
  return files;
}

std::vector<int64_t> sizes_of(const std::vector<TokenFile>& files) {
  std::vector<int64_t> sizes;
  for (const TokenFile& file : files) {
    sizes.push_back(file.size());
  }
  return sizes;
}

const char* header_text(TokenLayout layout) {
  switch (layout) {
    case TokenLayout::kRaw:
      return "no header";
    case TokenLayout::kGpt2:
      return "llm.c's header for GPT-2's tokens";
    case TokenLayout::kLlama3:
      return "llm.c's header for Llama 3's tokens";
  }
  return "";
}

}  // namespace

TokenFile::TokenFile(const std::string& path)
    : file_(std::make_shared<const files::MappedFile>(path)), layout_(TokenLayout::kRaw) {
  const LayoutRow* const row = layout_row_of(*file_);
  NARROWCAST_CHECK_INPUT(row != nullptr || may_be_raw(path), path, ": byte 0: has neither of the magic numbers ",
                         kLayouts[0].magic, " and ", kLayouts[1].magic,
                         " of llm.c's token files; without a header they are called train.bin and val.bin");
  if (row != nullptr) {
    layout_ = row->layout;
    size_ = read_header(*file_, *row);
    begin_ = kHeaderBytes;
  }
  const int64_t bytes = file_->size() - begin_;
  const int64_t width = token_bytes(layout_);
  NARROWCAST_CHECK_INPUT(bytes % width == 0, path, ": byte ", file_->size(), ": the file ends within a token of ",
                         width, " bytes");
  NARROWCAST_CHECK_INPUT(row == nullptr || size_ == bytes / width, path, ": byte ", kCountAt, ": says ", size_,
                         " tokens, but ", bytes / width, " follow the header");
  size_ = bytes / width;
  NARROWCAST_CHECK_INPUT(size_ >= 1, path, ": byte ", begin_, ": the file ends before its first token");
}

int64_t TokenFile::greatest() const {
  const std::string_view bytes = file_->bytes().substr(static_cast<size_t>(begin_));
  return token_bytes(layout_) == 4 ? greatest_of<uint32_t>(bytes) : greatest_of<uint16_t>(bytes);
}

void TokenFile::copy(int64_t begin, int64_t count, int64_t vocabulary_size, int64_t* out) const {
  const int64_t width = token_bytes(layout_);
  const int64_t first = begin_ + begin * width;
  const std::string_view bytes = file_->bytes().substr(static_cast<size_t>(first), static_cast<size_t>(count * width));
  width == 4 ? copy_tokens<uint32_t>(bytes, out) : copy_tokens<uint16_t>(bytes, out);
  const int64_t* const wrong = std::find_if(out, out + count, [&](int64_t token) { return token >= vocabulary_size; });
  NARROWCAST_CHECK_INPUT(wrong == out + count, path(), ": byte ", first + (wrong - out) * width, ": has the token ",
                         *wrong, ", but the vocabulary has ", vocabulary_size, " tokens, 0..", vocabulary_size - 1);
}

TokenFolder::TokenFolder(const std::string& folder) : name_(folder) {
  const DataFiles files = list_files(folder, DataFormat::kTokens);
  training_ = open_all(files.training);
  validation_ = open_all(files.validation);
  const TokenFile& first = training_.front();
  for (const auto& part : {training_, validation_}) {
    for (const TokenFile& file : part) {
      NARROWCAST_CHECK_INPUT(file.layout() == first.layout(), file.path(), ": byte 0: has ", header_text(file.layout()),
                             ", but ", first.path(), " has ", header_text(first.layout()));
    }
  }
}

uint64_t TokenFolder::content_hash() const {
  uint64_t hash = kHashStart;
  for (const auto& part : {training_, validation_}) {
    for (const TokenFile& file : part) {
      hash = files::sampled_hash(file.file(), hash);
    }
  }
  return hash;
}

int64_t TokenFolder::greatest_token() const {
  int64_t greatest = 0;
  for (const auto& part : {training_, validation_}) {
    for (const TokenFile& file : part) {
      greatest = std::max(greatest, file.greatest());
    }
  }
  return greatest;
}

TokenDataset::TokenDataset(TokenFolder folder, const TokenOptions& options)
    : folder_(std::move(folder)),
      options_((check_context(options.context), options)),
      training_(sizes_of(folder_.training()), {.context = options.context, .stride = 1}),
      held_out_(sizes_of(folder_.validation()), {.context = options.context, .stride = options.context}) {
  for (const Windows* windows : {&training_, &held_out_}) {
    TORCH_CHECK_VALUE(windows->size() >= 1, folder_.name(), ": none of its ",
                      windows == &training_ ? "training" : "validation",
                      " files has more tokens than context = ", options.context);
  }
}

models::Batch TokenDataset::training_batch(at::IntArrayRef indices) const {
  return batch(folder_.training(), training_.starts(indices));
}

models::Batch TokenDataset::held_out_batch(at::IntArrayRef indices) const {
  return batch(folder_.validation(), held_out_.starts(indices));
}

models::Batch TokenDataset::batch(const std::vector<TokenFile>& files, const std::vector<WindowStart>& starts) const {
  const int64_t length = options_.context + 1;
  const at::Tensor windows = at::empty({static_cast<int64_t>(starts.size()), length}, at::kLong);
  int64_t* out = windows.mutable_data_ptr<int64_t>();
  for (const WindowStart& start : starts) {
    files[start.segment].copy(start.offset, length, options_.vocabulary_size, out);
    out += length;
  }
  return batch_of_windows(windows);
}

}  // namespace narrowcast::data
