// Memory-mapped files: the system reads their parts when they are used, so files may be larger than the memory.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/base/files/open_file.h"

namespace narrowcast::files {

// The bytes of a file, as of opening. Safe to use from several threads. Meanwhile nobody may shorten the file: using
// bytes that are gone ends the process by SIGBUS. Replacing the file, as by `mv`, is safe.
class MappedFile {
 public:
  // Throws c10::ValueError as InputFile does, and naming path and reason if the system cannot map it.
  explicit MappedFile(const std::string& path) : MappedFile(InputFile(path)) {}
  explicit MappedFile(const InputFile& file);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  int64_t size() const { return static_cast<int64_t>(bytes_.size()); }
  std::string_view bytes() const { return bytes_; }

 private:
  std::string path_;
  std::string_view bytes_;
};

// A 64-bit hash (base/files/hash.h) of a file's length and bytes. Up to 16 MiB it covers all bytes; of a longer file it
// covers 256 pieces of 4 KiB, spread evenly from the first byte to the last. So it is fast for any file, and detects
// any change of the length, but may miss a change in a long file.
uint64_t sampled_hash(const MappedFile& file, uint64_t hash);

// A dense row-major array in a file. Its bytes may be unaligned.
struct MappedTensor {
  std::shared_ptr<const MappedFile> file;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  std::vector<int64_t> shape;
  int64_t begin = 0;  // offset of its first byte in the file; the others follow, all within the file

  const std::string& path() const { return file->path(); }
};

}  // namespace narrowcast::files
