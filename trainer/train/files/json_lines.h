// JSON lines (https://jsonlines.org): one JSON object per line, for metrics.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "trainer/train/files/file_io.h"

namespace narrowcast::files {

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
  // "NaN", "Infinity" and "-Infinity", at any depth. Throws c10::ValueError if it is not an object
  // or holds a string that is not UTF-8, OutputError if the line cannot be written (for example a full disk).
  void append(const nlohmann::json& object);

 private:
  std::string path_;
  FileDescriptor descriptor_;
};

}  // namespace narrowcast::files
