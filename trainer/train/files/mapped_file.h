// Files as memory: the system reads what is used of them, when it is used, so they may be larger than the memory.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/base/files/open_file.h"

namespace narrowcast::files {

// The bytes of a file, as of opening. Safe to use from several threads. Nobody may shorten the file meanwhile: to use
// bytes that are gone ends the process by SIGBUS. To replace it, as by `mv`, does no harm.
class MappedFile {
 public:
  // Throws c10::ValueError as InputFile does, and naming path and reason if the system does not map it.
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

// How a message begins about a file that is wrong at that byte: "PATH: byte N: ".
std::string at_byte(int64_t byte, const std::string& path);

// A hash of 64 bits (base/files/hash.h) of a file's length and of its bytes: all of them up to 16 MiB, of a longer file
// 256 pieces of 4 KiB, spread evenly from its first byte to its last. So a change of a long file may stay unseen, but
// none of its length, and to tell two of them apart takes no time.
uint64_t sampled_hash(const MappedFile& file, uint64_t hash);

// A dense row-major array in a file. Its bytes may be aligned to nothing.
struct MappedTensor {
  std::shared_ptr<const MappedFile> file;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  std::vector<int64_t> shape;
  int64_t begin = 0;  // of its first byte in the file; the others follow, all within it

  const std::string& path() const { return file->path(); }
};

}  // namespace narrowcast::files
