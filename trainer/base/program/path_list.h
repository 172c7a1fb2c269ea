// The type of a flag that names several files and folders.
#pragma once

#include <absl/strings/string_view.h>

#include <string>
#include <vector>

namespace narrowcast::program {

// Paths separated by commas. A comma within a path is written `\,`; any other backslash belongs to its path.
struct PathList {
  std::vector<std::string> paths;
};

// For Abseil: every text is a valid list, and the empty text is the empty list.
bool AbslParseFlag(absl::string_view text, PathList* list, std::string* error);
std::string AbslUnparseFlag(const PathList& list);

}  // namespace narrowcast::program
