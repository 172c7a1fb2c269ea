// Files written with errors that name the path. input/input_file.h reads them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "trainer/base/files/open_file.h"
#include "trainer/train/files/sha256.h"

namespace narrowcast::files {

// Writes all bytes to a descriptor, or throws OutputError with `path` and the system's reason (for example that the
// disk is full).
void write_fully(const FileDescriptor& file, const std::string& path, std::string_view bytes);

// Replaces a file as a whole: bytes go to a temporary name in the same folder, and commit() makes
// them the file at `path`, durably. Without commit() the file at `path` stays as it was, and the
// temporary one is removed. A place where no file can be is a c10::ValueError, bytes that cannot be
// written are an OutputError; each names the path and the reason.
class AtomicFile {
 public:
  explicit AtomicFile(const std::string& path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::string_view bytes);
  // Flushes to the disk and renames. Nothing may be written afterwards. Returns what was written, as it was handed
  // over: a disk that keeps something else is found out.
  FileDigest commit();

 private:
  std::string path_;
  std::string temporary_path_;
  FileDescriptor descriptor_;
  Sha256 hash_;
  int64_t bytes_ = 0;
};

// Makes the names in a folder (files made, renamed or removed) durable, where the file system can.
void sync_folder(const std::string& folder);

}  // namespace narrowcast::files
