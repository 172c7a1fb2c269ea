// The type of a flag that names several files and folders.
#pragma once

#include <absl/strings/string_view.h>

#include <string>
#include <vector>

namespace narrowcast::program {

// Paths separated by commas. A comma that belongs to a path is written `\,`; any other backslash is one of the path.
struct PathList {
  std::vector<std::string> paths;
};

// For Abseil: every text is a list, the empty text that of no path.
bool AbslParseFlag(absl::string_view text, PathList* list, std::string* error);
std::string AbslUnparseFlag(const PathList& list);

}  // namespace narrowcast::program
