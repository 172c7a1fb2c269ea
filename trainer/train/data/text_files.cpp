#include "trainer/train/data/text_files.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <filesystem>

namespace narrowcast::data {
namespace {

namespace fs = std::filesystem;

bool is_hidden(const fs::path& path) { return path.filename().string().starts_with('.'); }

bool has_text_suffix(const fs::path& path) {
  const std::string suffix = path.extension();
  return std::find(text_suffixes().begin(), text_suffixes().end(), suffix) != text_suffixes().end();
}

// Goes to the next entry. What ++entry throws does not say which folder could not be read: the one that `entry` is, or
// the one that it is in.
void step(fs::recursive_directory_iterator& entry) {
  const bool enters = entry.recursion_pending() && !entry->is_symlink() && entry->is_directory();
  const fs::path read = enters ? entry->path() : entry->path().parent_path();
  std::error_code error;
  entry.increment(error);
  if (error) {
    throw fs::filesystem_error("cannot list", read, error);
  }
}

std::vector<std::string> text_files_below(const std::string& folder) {
  std::vector<std::string> files;
  for (fs::recursive_directory_iterator entry(folder), end; entry != end; step(entry)) {
    if (is_hidden(entry->path())) {
      entry.disable_recursion_pending();
    } else if (entry->is_regular_file() && has_text_suffix(entry->path())) {
      files.push_back(entry->path());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::vector<std::string> list_folder(const std::string& folder) {
  try {
    return text_files_below(folder);
  } catch (const fs::filesystem_error& error) {
    TORCH_CHECK_VALUE(false, error.path1().string(), ": cannot be read: ", error.code().message());
  }
}

}  // namespace

const std::vector<std::string_view>& text_suffixes() {
  static const std::vector<std::string_view> suffixes = {
      ".c",  ".cc", ".cmake", ".cpp", ".css", ".cu",  ".cuh",  ".go",   ".h",  ".hpp", ".html", ".java", ".js",
      ".md", ".py", ".rs",    ".rst", ".sh",  ".tex", ".text", ".toml", ".ts", ".txt", ".yaml", ".yml",
  };
  return suffixes;
}

std::vector<std::string> list_text_files(const std::vector<std::string>& paths) {
  TORCH_CHECK_VALUE(!paths.empty(), "data: no file or folder is given");
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    std::error_code error;
    if (!fs::is_directory(path, error)) {
      TORCH_CHECK_VALUE(fs::exists(path, error), path, ": does not exist");
      files.push_back(path);
      continue;
    }
    const std::vector<std::string> found = list_folder(path);
    TORCH_CHECK_VALUE(!found.empty(), path, ": holds no text file (a file with one of the suffixes ",
                      c10::Join(" ", text_suffixes()), ")");
    files.insert(files.end(), found.begin(), found.end());
  }
  return files;
}

std::vector<std::string> own_text_paths() {
  const fs::path installed = fs::read_symlink("/proc/self/exe").parent_path().parent_path() / "share/narrowcast/text";
  const fs::path root = fs::is_directory(installed) ? installed : fs::path(NARROWCAST_SOURCE_DIR);
  std::vector<std::string> paths;
  for (const char* name : {"README.md", "docs", "ops", "hooks", "models", "trainer"}) {
    paths.push_back((root / name).string());
  }
  return paths;
}

}  // namespace narrowcast::data
