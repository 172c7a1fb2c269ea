// Files are written here, with errors that name the path, and told apart by their SHA-256; base/files/open_file.h
// reads them.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "ops/common/file_descriptor.h"

struct evp_md_ctx_st;

namespace narrowcast::files {

// The SHA-256 of bytes, the same that the program `sha256sum` prints.
class Sha256 {
 public:
  Sha256();

  void update(std::string_view bytes);
  // Returns the digest of all bytes so far, as 64 lower-case hexadecimal digits.
  std::string hex() const;

 private:
  std::unique_ptr<evp_md_ctx_st, void (*)(evp_md_ctx_st*)> context_;
};

// What tells one content of a file from another.
struct FileDigest {
  int64_t bytes = 0;
  std::string sha256 = {};
  bool operator==(const FileDigest&) const = default;
};

// Writes all bytes to a descriptor, or throws OutputError with `path` and the system's reason (for example that the
// disk is full).
void write_fully(const FileDescriptor& file, const std::string& path, std::string_view bytes);

// Throws "PATH: FAILURE: REASON" with errno's reason unless `is_written`: c10::ValueError where another path would do,
// OutputError where the disk or the file system refuses at present.
void check_written(bool is_written, const std::string& path, const char* failure = "cannot be written");

// Replaces a file as a whole: bytes go to a temporary name in the same folder, and commit() makes
// them the file at `path`, durably. Without commit() the file at `path` stays as it was, and the
// temporary one is removed. A place where no file can be is a c10::ValueError, a disk that is full or a
// folder that cannot be changed at present an OutputError; each names the path and the reason.
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
  // The same without waiting for the disk, for a file that will be replaced again soon: a crash of the machine may
  // leave it empty or cut.
  void commit_unsynced();

 private:
  std::string path_;
  std::string temporary_path_;
  FileDescriptor descriptor_;
  Sha256 hash_;
  int64_t bytes_ = 0;
};

// Throws c10::ValueError "OPTION: PATH: ..." if there is no such folder, or AtomicFile could not replace what is there.
// Leaves it as it is.
void check_replaceable(const std::string& option, const std::string& path);

// Makes a folder and those that it is in, if they are not there. Throws c10::ValueError "OPTION: cannot make folder
// FOLDER: ..." with the system's reason.
void make_folder(const std::string& option, const std::string& folder);

// Makes the folder likewise, but returns the reason why it cannot be made, for a message. Empty once the folder is
// there. For a symbolic link to nowhere the reason is "LINK is a link to TARGET, which does not exist".
std::string try_to_make_folder(const std::string& folder);

// Throws c10::ValueError "OPTION: ..." naming the folder and the reason if make_folder would, or nothing could be
// written into it, as far as that can be told without making it. Leaves all as it is.
void check_makeable(const std::string& option, const std::string& folder);

// Whether to make `folder` is also to make the folder that `path` is in.
bool makes_folder_of(const std::string& folder, const std::string& path);

// Makes the names in a folder (files made, renamed or removed) durable, where the file system can.
void sync_folder(const std::string& folder);

// JSON lines (https://jsonlines.org): one JSON object per line, for metrics.

// What to do with a file that already exists.
enum class JsonLinesMode { kReplace, kAppend };

// A file of one JSON object per line. Every line is handed to the system as a whole, so that readers
// and a later crash of this process see complete lines.
class JsonLinesFile {
 public:
  // Creates or opens the file. Throws c10::ValueError naming the path and the system's reason, or that the path is that
  // of a symbolic link or another thing that is no regular file.
  explicit JsonLinesFile(const std::string& path, JsonLinesMode mode = JsonLinesMode::kReplace);

  // Appends `object` as one line. JSON has no NaN and no infinities: they are written as the strings
  // "NaN", "Infinity" and "-Infinity", at any depth. Strings that are not UTF-8 are written as with_utf8_strings
  // (base/files/json.h) has them. Throws c10::ValueError if it is not an object or has a key that is not UTF-8,
  // OutputError if the line cannot be written (for example a full disk).
  void append(const nlohmann::json& object);

  // Throws c10::ValueError naming the path if no such file could be made. Leaves what is there as it is.
  static void check_place(const std::string& path);

 private:
  std::string path_;
  FileDescriptor descriptor_;
};

}  // namespace narrowcast::files
