#include "trainer/train/checkpoint/checkpoint_folder.h"

#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_format.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <optional>
#include <system_error>

#include <narrowcast/errors.h>
#include "trainer/base/files/open_file.h"
#include "trainer/train/files/safetensors.h"

namespace narrowcast::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPrefix = "step-";
constexpr size_t kPrefixLength = 5;
constexpr const char* kUnfinished = ".unfinished";

// Of "step-N" and "step-N.unfinished", for any N of digits.
std::optional<int64_t> step_of(const std::string& name) {
  int64_t step = 0;
  const std::string digits = name.substr(0, name.find('.'));
  const bool is_number = absl::StartsWith(digits, kPrefix) && absl::SimpleAtoi(digits.substr(kPrefixLength), &step);
  return is_number ? std::optional(step) : std::nullopt;
}

std::vector<fs::path> folders_in(const std::string& folder) {
  std::error_code error;
  std::vector<fs::path> paths;
  if (!fs::exists(folder, error)) {
    return paths;
  }
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    std::error_code ignored;
    if (entry->is_directory(ignored)) {
      paths.push_back(entry->path());
    }
  }
  TORCH_CHECK_VALUE(!error, folder, ": cannot be read: ", error.message());
  return paths;
}

void remove_whole(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  TORCH_CHECK_VALUE(!error, path.string(), ": cannot be removed: ", error.message());
}

TensorMap read_checked(const std::string& path, const ManifestFile& file) {
  return files::read_safetensors(path + "/" + file.name, file.digest).tensors;
}

// "DIR/step-N" must be of step N: a folder that was renamed is not the newest because of its name. One that is named
// otherwise says nothing.
void check_name(const std::string& path, const Manifest& manifest) {
  const fs::path normal = fs::path(path + "/").lexically_normal().parent_path();  // without slashes at its end
  const auto step = step_of(normal.filename().string());
  NARROWCAST_CHECK_INPUT(!step.has_value() || *step == manifest.step, path, "/", kManifestName, ": is of step ",
                         manifest.step, ", but its folder is named as that of step ", step.value_or(0));
}

}  // namespace

std::string checkpoint_path(const std::string& folder, int64_t step) {
  return absl::StrFormat("%s/%s%08d", folder, kPrefix, step);
}

std::string unfinished_path(const std::string& folder, int64_t step) {
  return checkpoint_path(folder, step) + kUnfinished;
}

std::vector<int64_t> checkpoint_steps(const std::string& folder) {
  std::vector<int64_t> steps;
  for (const fs::path& path : folders_in(folder)) {
    const auto step = step_of(path.filename().string());
    if (step.has_value() && checkpoint_path(folder, *step) == folder + "/" + path.filename().string()) {
      steps.push_back(*step);
    }
  }
  std::sort(steps.begin(), steps.end(), std::greater<>());
  return steps;
}

std::string holds_checkpoints(int64_t newest) {
  return absl::StrFormat(
      "holds checkpoints already, the newest of step %d; --resume goes on from it, --overwrite removes "
      "them",
      newest);
}

std::vector<std::string> remove_unfinished(const std::string& folder) {
  std::vector<std::string> removed;
  for (const fs::path& path : folders_in(folder)) {
    const std::string name = path.filename().string();
    const auto step = step_of(name);
    if (step.has_value() && unfinished_path(folder, *step) == folder + "/" + name) {
      remove_whole(path);
      removed.push_back(path.string());
    }
  }
  return removed;
}

void remove_checkpoint(const std::string& folder, int64_t step) {
  const std::string path = checkpoint_path(folder, step);
  const std::string aside = unfinished_path(folder, step);
  remove_whole(aside);
  std::error_code error;
  fs::rename(path, aside, error);
  TORCH_CHECK_VALUE(!error, path, ": cannot be removed: ", error.message());
  remove_whole(aside);
}

ReadCheckpoint read_checkpoint(const std::string& path, int64_t rank, int64_t world_size) {
  const std::string manifest_path = path + "/" + kManifestName;
  ReadCheckpoint read = {
      .manifest = parse_manifest(files::read_file(manifest_path, {.most_bytes = kLargestManifest}), manifest_path),
      .restored = {}};
  check_name(path, read.manifest);
  const std::vector<ManifestFile>& files = read.manifest.files;
  Restored& restored = read.restored;
  restored.step = read.manifest.step;
  restored.former.world_size = read.manifest.world_size;
  restored.training = read.manifest.training;
  restored.path = path;
  restored.replica = read_checked(path, files[0]);
  const auto read_rank = [&](int64_t former) { return read_checked(path, files[static_cast<size_t>(former) + 1]); };
  for (int64_t former = rank; former < restored.former.world_size; former += world_size) {
    restored.former.states.push_back(read_rank(former));
  }
  if (restored.former.states.empty()) {
    restored.former.first = read_rank(0);
  }
  return read;
}

}  // namespace narrowcast::checkpoint
