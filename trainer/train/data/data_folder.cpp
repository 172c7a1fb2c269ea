#include "trainer/train/data/data_folder.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <fnmatch.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include <narrowcast/errors.h>
#include "ops/common/text.h"

namespace narrowcast::data {
namespace {

namespace fs = std::filesystem;

using Patterns = std::vector<std::string>;  // as in the shell

// The file names of a format.
struct FormatRow {
  DataFormat format;
  const char* description;
  Patterns training;
  Patterns validation;
};

const std::vector<FormatRow>& format_rows() {
  static const std::vector<FormatRow> rows = {
      {DataFormat::kIdx, "images (IDX)", {idx_images_name(kIdxTraining), idx_images_name(kIdxTraining) + ".gz"}, {}},
      {DataFormat::kTokens,
       "token files",
       {kRawTraining, "*_train.bin", "*_train_*.bin"},
       {kRawValidation, "*_val.bin", "*_val_*.bin"}},
      {DataFormat::kSafetensors, "tensors (safetensors)", {"train*.safetensors"}, {"validation*.safetensors"}},
      {DataFormat::kNpy,
       "arrays (NPY)",
       {"train*" + npy_ending(kInputs), "train*" + npy_ending(kTargets)},
       {"validation*" + npy_ending(kInputs), "validation*" + npy_ending(kTargets)}},
  };
  return rows;
}

const FormatRow& row_of(DataFormat format) { return *std::ranges::find(format_rows(), format, &FormatRow::format); }

bool matches(const Patterns& patterns, const std::string& name) {
  return std::ranges::any_of(
      patterns, [&](const std::string& pattern) { return ::fnmatch(pattern.c_str(), name.c_str(), 0) == 0; });
}

bool has_file(const FormatRow& row, const std::string& name) {
  return matches(row.training, name) || matches(row.validation, name);
}

// The sorted names of a folder's files, without hidden ones, which other systems leave beside files ("._train.bin").
// Empty if the folder cannot be opened.
std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  while (!error && entry != fs::directory_iterator()) {
    if (const std::string name = entry->path().filename(); !name.starts_with('.')) {
      names.push_back(name);
    }
    entry.increment(error);
    NARROWCAST_CHECK_INPUT(!error, folder, ": cannot be read to its end: ", error.message());
  }
  std::ranges::sort(names);
  return names;
}

// Throws for one file of several that belong together: it is not a text, whatever it contains.
void check_no_part(const std::string& path) {
  std::error_code ignored;  // A path that cannot be looked up cannot be read either; reading reports it.
  if (!fs::exists(path, ignored) || fs::is_directory(path, ignored)) {
    return;
  }
  const fs::path folder = fs::path(path).parent_path();
  for (const FormatRow& row : format_rows()) {
    TORCH_CHECK_VALUE(!has_file(row, fs::path(path).filename()), "data: ", path, " is named like a folder's file of ",
                      row.description, ": give the folder ", folder.empty() ? "." : folder.string(), " instead");
  }
}

std::vector<std::string> paths_of(const std::string& folder, const Patterns& patterns) {
  std::vector<std::string> paths;
  for (const std::string& name : names_in(folder)) {
    if (matches(patterns, name)) {
      paths.push_back((fs::path(folder) / name).string());
    }
  }
  NARROWCAST_CHECK_INPUT(!paths.empty(), folder, ": has no ", c10::Join(" or ", patterns));
  return paths;
}

}  // namespace

std::string idx_images_name(const std::string& part) { return part + "-images-idx3-ubyte"; }

std::string idx_labels_name(const std::string& part) { return part + "-labels-idx1-ubyte"; }

std::string npy_ending(const std::string& tensor) { return "_" + tensor + ".npy"; }

DataFormat format_of(const std::vector<std::string>& paths) {
  std::ranges::for_each(paths, check_no_part);
  if (paths.size() != 1) {
    return DataFormat::kText;
  }
  const FormatRow* found = nullptr;
  std::string first;
  for (const std::string& name : names_in(paths[0])) {
    for (const FormatRow& row : format_rows()) {
      if (!has_file(row, name)) continue;
      NARROWCAST_CHECK_INPUT(found == nullptr || found == &row, paths[0], ": holds data of two formats, ",
                             in_quotes(first), " and ", in_quotes(name), "; use a separate folder for each format");
      found = &row;
      first = name;
    }
  }
  return found == nullptr ? DataFormat::kText : found->format;
}

const char* describe(DataFormat format) { return format == DataFormat::kText ? "text" : row_of(format).description; }

DataFiles list_files(const std::string& folder, DataFormat format) {
  const FormatRow& row = row_of(format);
  const DataFiles files = {.training = paths_of(folder, row.training), .validation = paths_of(folder, row.validation)};
  for (const std::string& path : files.training) {
    NARROWCAST_CHECK_INPUT(std::ranges::find(files.validation, path) == files.validation.end(), path,
                           ": has a name that matches both training and validation data");
  }
  return files;
}

}  // namespace narrowcast::data
