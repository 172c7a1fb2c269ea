#include "trainer/base/files/torch_archive.h"

#include <c10/util/Exception.h>
#include <caffe2/serialize/inline_container.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <exception>
#include <vector>

#include <narrowcast/errors.h>
#include "ops/common/error_message.h"
#include "ops/common/text.h"

namespace narrowcast::files {
namespace {

using caffe2::serialize::PyTorchStreamReader;

// The CRC-32 of ZIP files, in steps of 8 bytes: table t gives the effect of a byte that t bytes follow.
constexpr size_t kStep = 8;
using Tables = std::array<std::array<uint32_t, 256>, kStep>;

constexpr Tables crc_tables() {
  Tables tables = {};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0xedb88320U : 0);
    tables[0][byte] = crc;
  }
  for (size_t t = 1; t < kStep; ++t) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint32_t before = tables[t - 1][byte];
      tables[t][byte] = (before >> 8) ^ tables[0][before & 255];
    }
  }
  return tables;
}

uint32_t crc32(std::string_view bytes) {
  static_assert(std::endian::native == std::endian::little);
  static constexpr Tables kTables = crc_tables();
  uint32_t crc = ~uint32_t{0};
  for (; bytes.size() >= kStep; bytes.remove_prefix(kStep)) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data(), sizeof(word));
    word ^= crc;
    crc = 0;
    for (size_t i = 0; i < kStep; ++i) crc ^= kTables[kStep - 1 - i][(word >> (8 * i)) & 255];
  }
  for (const char byte : bytes) crc = (crc >> 8) ^ kTables[0][(crc ^ static_cast<uint8_t>(byte)) & 255];
  return ~crc;
}

template <class Number>
Number number_at(const InputFile& file, int64_t offset) {
  Number number = 0;
  file.read(offset, &number, sizeof(number));
  return number;
}

// Calls body(). Errors of LibTorch's reader become errors that name the path.
template <class Body>
auto checked(const std::string& path, const Body& body) {
  try {
    return body();
  } catch (const CorruptInputError&) {
    throw;
  } catch (const std::exception& error) {
    NARROWCAST_CHECK_INPUT(false, path, ": is damaged: ", printable(first_line(error_message(error))));
    throw;
  }
}

}  // namespace

TorchArchive::TorchArchive(const std::string& path, const std::string& otherwise) : file_(path) {
  try {
    reader_ = std::make_unique<PyTorchStreamReader>(path);
  } catch (const std::exception&) {
    TORCH_CHECK_VALUE(false, path, ": ", otherwise);
  }
}

TorchArchive::~TorchArchive() = default;

bool TorchArchive::has(const std::string& name) const {
  return checked(file_.path(), [&] { return reader_->hasRecord(name); });
}

std::optional<std::string> TorchArchive::find(std::string_view folder, std::string_view suffix) const {
  const std::vector<std::string> names = checked(file_.path(), [&] { return reader_->getAllRecords(); });
  const auto found = std::ranges::find_if(
      names, [&](const std::string& name) { return name.starts_with(folder) && name.ends_with(suffix); });
  return found == names.end() ? std::nullopt : std::optional(*found);
}

std::string TorchArchive::read(const std::string& name) const {
  return checked(file_.path(), [&] {
    const size_t size = reader_->getRecordSize(name);
    NARROWCAST_CHECK_INPUT(size <= static_cast<size_t>(file_.size()), file_.path(), ": its record ", in_quotes(name),
                           " is longer than the file: ", size, " bytes");
    std::string bytes(size, '\0');
    reader_->getRecord(name, bytes.data(), size);
    check_sum(name, bytes);
    return bytes;
  });
}

// LibTorch's reader does not compare checksums. A record's checksum is in its header or, if a flag is set there, after
// its data.
void TorchArchive::check_sum(const std::string& name, std::string_view bytes) const {
  constexpr int64_t kFlags = 6;
  constexpr int64_t kSum = 14;
  constexpr uint16_t kIsAfterData = 8;
  constexpr int64_t kSignature = 4;
  const auto header = static_cast<int64_t>(reader_->getRecordHeaderOffset(name));
  const bool is_after_data = (number_at<uint16_t>(file_, header + kFlags) & kIsAfterData) != 0;
  const int64_t place = is_after_data
                            ? static_cast<int64_t>(reader_->getRecordOffset(name)) + std::ssize(bytes) + kSignature
                            : header + kSum;
  NARROWCAST_CHECK_INPUT(number_at<uint32_t>(file_, place) == crc32(bytes), file_.path(), ": its record ",
                         in_quotes(name), " is damaged: its checksum is wrong");
}

}  // namespace narrowcast::files
