#include "trainer/train/data/token_files.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string_view>
#include <utility>
#include <variant>

#include <narrowcast/errors.h>
#include "trainer/base/files/hash.h"
#include "trainer/train/data/data_folder.h"

namespace narrowcast::data {
namespace {

static_assert(std::endian::native == std::endian::little, "tokens are copied as the files have them");

using files::at_byte;

constexpr int64_t kHeaderBytes = 256 * sizeof(int32_t);
constexpr int64_t kVersionAt = 4;
constexpr int64_t kCountAt = 8;

// The beginning of llm.c's token files.
struct Header {
  int32_t magic;
  int32_t version;
};

// A layout: its header, its description for people, and a token of its type.
struct LayoutRow {
  TokenLayout layout;
  std::optional<Header> header;
  const char* text;
  std::variant<uint16_t, uint32_t> token;
};

constexpr std::array<LayoutRow, 3> kLayouts = {
    {{TokenLayout::kRaw, std::nullopt, "no header", uint16_t{}},
     {TokenLayout::kGpt2, Header{20240520, 1}, "llm.c's header for GPT-2's tokens", uint16_t{}},
     {TokenLayout::kLlama3, Header{20240801, 7}, "llm.c's header for Llama 3's tokens", uint32_t{}}}};

const LayoutRow& row_of_layout(TokenLayout layout) { return *std::ranges::find(kLayouts, layout, &LayoutRow::layout); }

// The result of `function` for a token of the layout's type, whose value is arbitrary.
template <class Function>
auto visit_token(TokenLayout layout, const Function& function) {
  return std::visit(function, row_of_layout(layout).token);
}

int64_t token_bytes(TokenLayout layout) {
  return visit_token(layout, [](auto token) { return static_cast<int64_t>(sizeof(token)); });
}

std::vector<int32_t> magic_numbers() {
  std::vector<int32_t> numbers;
  for (const LayoutRow& row : kLayouts) {
    if (row.header) numbers.push_back(row.header->magic);
  }
  return numbers;
}

template <class Number>
Number stored_at(std::string_view bytes, int64_t offset) {
  Number number;
  std::memcpy(&number, bytes.data() + offset, sizeof(number));
  return number;
}

// The row whose magic number the file begins with, or the row of files without a header.
const LayoutRow& layout_row_of(const files::MappedFile& file) {
  if (file.size() >= kVersionAt) {
    const auto magic = stored_at<int32_t>(file.bytes(), 0);
    const auto* const row = std::ranges::find_if(
        kLayouts, [&](const LayoutRow& candidate) { return candidate.header && candidate.header->magic == magic; });
    if (row != kLayouts.end()) return *row;
  }
  return row_of_layout(TokenLayout::kRaw);
}

bool may_be_raw(const std::string& path) {
  const std::string name = std::filesystem::path(path).filename().string();
  return name == kRawTraining || name == kRawValidation;
}

// Checks the header and returns its number of tokens.
int64_t read_header(const files::MappedFile& file, const Header& header) {
  NARROWCAST_CHECK_INPUT(file.size() >= kHeaderBytes, at_byte(file.size(), file.path()),
                         "the file ends within its header of ", kHeaderBytes, " bytes");
  const auto version = stored_at<int32_t>(file.bytes(), kVersionAt);
  NARROWCAST_CHECK_INPUT(version == header.version, at_byte(kVersionAt, file.path()), "has the version ", version,
                         ", but tokens with the magic number ", header.magic, " have ", header.version);
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

}  // namespace

TokenFile::TokenFile(const std::string& path)
    : file_(std::make_shared<const files::MappedFile>(path)), layout_(layout_row_of(*file_).layout) {
  const std::optional<Header> header = row_of_layout(layout_).header;
  NARROWCAST_CHECK_INPUT(header || may_be_raw(path), at_byte(0, path), "has neither of the magic numbers ",
                         c10::Join(" and ", magic_numbers()),
                         " of llm.c's token files; files without a header must be named ", kRawTraining, " and ",
                         kRawValidation);
  if (header) {
    size_ = read_header(*file_, *header);
    begin_ = kHeaderBytes;
  }
  const int64_t bytes = file_->size() - begin_;
  const int64_t width = token_bytes(layout_);
  NARROWCAST_CHECK_INPUT(bytes % width == 0, at_byte(file_->size(), path), "the file ends within a token of ", width,
                         " bytes");
  NARROWCAST_CHECK_INPUT(!header || size_ == bytes / width, at_byte(kCountAt, path), "the header counts ", size_,
                         " tokens, but ", bytes / width, " follow it");
  size_ = bytes / width;
  NARROWCAST_CHECK_INPUT(size_ >= 1, at_byte(begin_, path), "the file ends before its first token");
}

int64_t TokenFile::greatest() const {
  const std::string_view bytes = file_->bytes().substr(static_cast<size_t>(begin_));
  return visit_token(layout_, [&](auto token) { return greatest_of<decltype(token)>(bytes); });
}

void TokenFile::copy(int64_t begin, int64_t count, int64_t vocabulary_size, int64_t* out) const {
  const int64_t width = token_bytes(layout_);
  const int64_t first = begin_ + begin * width;
  const std::string_view bytes = file_->bytes().substr(static_cast<size_t>(first), static_cast<size_t>(count * width));
  visit_token(layout_, [&](auto token) { copy_tokens<decltype(token)>(bytes, out); });
  const int64_t* const wrong = std::find_if(out, out + count, [&](int64_t token) { return token >= vocabulary_size; });
  NARROWCAST_CHECK_INPUT(wrong == out + count, at_byte(first + (wrong - out) * width, path()), "has the token ", *wrong,
                         ", but the vocabulary has ", vocabulary_size, " tokens, 0..", vocabulary_size - 1);
}

TokenFolder::TokenFolder(const std::string& folder) : name_(folder) {
  const DataFiles files = list_files(folder, DataFormat::kTokens);
  training_ = open_all(files.training);
  validation_ = open_all(files.validation);
  const TokenFile& first = training_.front();
  for (const auto& part : {training_, validation_}) {
    for (const TokenFile& file : part) {
      NARROWCAST_CHECK_INPUT(file.layout() == first.layout(), at_byte(0, file.path()), "has ",
                             row_of_layout(file.layout()).text, ", but ", first.path(), " has ",
                             row_of_layout(first.layout()).text);
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

std::optional<int64_t> TokenDataset::class_bound() const { return options_.vocabulary_size; }

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
