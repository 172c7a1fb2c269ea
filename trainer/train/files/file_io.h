// Writes files, with errors that name the path, and hashes them by SHA-256. base/files/open_file.h reads files.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "ops/common/file_descriptor.h"

struct evp_md_ctx_st;

namespace narrowcast::files {

// The SHA-256 of bytes, as the program `sha256sum` prints it.
class Sha256 {
 public:
  Sha256();

  void update(std::string_view bytes);
  // Returns the digest of all bytes so far, as 64 lower-case hexadecimal digits.
  std::string hex() const;

 private:
  std::unique_ptr<evp_md_ctx_st, void (*)(evp_md_ctx_st*)> context_;
};

// Distinguishes one content of a file from another.
struct FileDigest {
  int64_t bytes = 0;
  std::string sha256 = {};
  bool operator==(const FileDigest&) const = default;
};

// Writes all bytes to a descriptor, or throws OutputError with `path` and the system's reason (for example that the
// disk is full).
void write_fully(const FileDescriptor& file, const std::string& path, std::string_view bytes);

// Throws "PATH: FAILURE: REASON" with errno's reason: c10::ValueError if another path would work, OutputError if the
// disk or the file system refuses for now.
[[noreturn]] void throw_not_written(const std::string& path, const char* failure = "cannot be written");

// Replaces a whole file: bytes go to a temporary name in the same folder, and commit() durably renames it to `path`.
// Without commit() the file at `path` stays as it was, and the temporary one is removed. Errors name the path and the
// reason: c10::ValueError if no file can be at that place, OutputError if the disk is full or the folder cannot be
// changed for now.
class AtomicFile {
 public:
  explicit AtomicFile(const std::string& path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::string_view bytes);
  // Flushes to the disk and renames. Nothing may be written afterwards. Returns the digest of the bytes that were
  // passed to write(), so it reveals a disk that stored something else.
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

// Throws c10::ValueError "OPTION: PATH: ..." if there is no such folder, or AtomicFile could not replace an existing
// file. Changes nothing.
void check_replaceable(const std::string& option, const std::string& path);

// Makes a folder and its parents if they do not exist. Throws c10::ValueError "OPTION: cannot create folder FOLDER:
// ..." with the system's reason.
void make_folder(const std::string& option, const std::string& folder);

// Makes the folder as make_folder does, but returns the reason if it cannot be created, for a message. Empty if the
// folder exists now. For a dangling symbolic link the reason is "LINK is a link to TARGET, which does not exist".
std::string try_to_make_folder(const std::string& folder);

// Throws c10::ValueError "OPTION: ..." naming the folder and the reason if make_folder would, or the folder could not
// be written to, as far as this can be determined without making it. Changes nothing.
void check_makeable(const std::string& option, const std::string& folder);

// Whether making `folder` also makes the folder that contains `path`.
bool makes_folder_of(const std::string& folder, const std::string& path);

// Makes the names in a folder (files made, renamed or removed) durable, if the file system can.
void sync_folder(const std::string& folder);

// JSON lines (https://jsonlines.org): one JSON object per line, for metrics.

// How to treat an existing file.
enum class JsonLinesMode { kReplace, kAppend };

// A file of one JSON object per line. Every line is written by a single call, so readers see complete lines, even after
// a crash of this process.
class JsonLinesFile {
 public:
  // Creates or opens the file. Throws c10::ValueError naming the path and the system's reason, or that the path is a
  // symbolic link or not a regular file.
  explicit JsonLinesFile(const std::string& path, JsonLinesMode mode = JsonLinesMode::kReplace);

  // Appends `object` as one line. JSON has no NaN and no infinities: at any depth they are written as the strings
  // "NaN", "Infinity" and "-Infinity". Strings that are not UTF-8 are converted by with_utf8_strings
  // (base/files/json.h). Throws c10::ValueError if it is not an object or has a key that is not UTF-8, OutputError if
  // the line cannot be written (for example because the disk is full).
  void append(const nlohmann::json& object);

  // Throws c10::ValueError naming the path if no such file could be made. Changes nothing.
  static void check_place(const std::string& path);

 private:
  std::string path_;
  FileDescriptor descriptor_;
};

}  // namespace narrowcast::files
