#include "trainer/base/program/path_list.h"

#include <absl/strings/str_join.h>
#include <absl/strings/str_replace.h>

#include <utility>

namespace narrowcast::program {

bool AbslParseFlag(absl::string_view text, PathList* list, std::string* /*error*/) {
  list->paths.clear();
  if (text.empty()) {
    return true;
  }
  std::string path;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text.substr(i, 2) == "\\,") {
      path += text[++i];
    } else if (text[i] == ',') {
      list->paths.push_back(std::exchange(path, ""));
    } else {
      path += text[i];
    }
  }
  list->paths.push_back(path);
  return true;
}

std::string AbslUnparseFlag(const PathList& list) {
  return absl::StrJoin(list.paths, ",", [](std::string* text, const std::string& path) {
    text->append(absl::StrReplaceAll(path, {{",", "\\,"}}));
  });
}

}  // namespace narrowcast::program
