#include "trainer/train/files/mapped_file.h"

#include <c10/util/Exception.h>
#include <sys/mman.h>

#include <cerrno>

#include "trainer/base/files/hash.h"

namespace narrowcast::files {
namespace {

constexpr size_t kHashedWhole = size_t{16} << 20;
constexpr size_t kPieces = 256;
constexpr size_t kPieceBytes = 4096;

// An empty file cannot be mapped.
std::string_view map(const InputFile& file) {
  if (file.size() == 0) {
    return {};
  }
  const auto bytes = static_cast<size_t>(file.size());
  void* const address = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file.descriptor(), 0);
  TORCH_CHECK_VALUE(address != MAP_FAILED, file.path(), ": its ", bytes, " bytes cannot be mapped: ", reason(errno));
  return {static_cast<const char*>(address), bytes};
}

}  // namespace

MappedFile::MappedFile(const InputFile& file) : path_(file.path()), bytes_(map(file)) {}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) {
    ::munmap(const_cast<char*>(bytes_.data()), bytes_.size());
  }
}

uint64_t sampled_hash(const MappedFile& file, uint64_t hash) {
  const std::string_view bytes = file.bytes();
  const int64_t size = file.size();
  hash = hash_of_content({reinterpret_cast<const char*>(&size), sizeof(size)}, hash);
  if (bytes.size() <= kHashedWhole) {
    return hash_of_content(bytes, hash);
  }
  for (size_t piece = 0; piece < kPieces; ++piece) {
    const size_t begin = (bytes.size() - kPieceBytes) / (kPieces - 1) * piece;
    const bool is_last = piece + 1 == kPieces;
    hash = hash_of_content(bytes.substr(is_last ? bytes.size() - kPieceBytes : begin, kPieceBytes), hash);
  }
  return hash;
}

}  // namespace narrowcast::files
