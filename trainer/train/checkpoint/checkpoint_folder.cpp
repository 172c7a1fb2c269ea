#include "trainer/train/checkpoint/checkpoint_folder.h"

#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>
#include <c10/util/Exception.h>
#include <c10/util/ScopeExit.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <random>
#include <system_error>
#include <utility>

#include <narrowcast/errors.h>
#include "ops/common/text.h"
#include "trainer/base/files/open_file.h"
#include "trainer/base/process/failpoint.h"
#include "trainer/ddp/process_group/first_failure.h"
#include "trainer/train/files/file_io.h"
#include "trainer/train/files/safetensors.h"

namespace narrowcast::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPrefix = "step-";
constexpr size_t kPrefixLength = 5;
constexpr const char* kUnfinished = ".unfinished";
constexpr const char* kProbeName = "/.shared-folder-probe";

// Returns N for "step-N" and "step-N.unfinished", if N consists of digits.
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

void throw_unless_removed(const std::string& path, const std::error_code& error) {
  if (error) {
    errno = error.value();
    files::throw_not_written(path, "cannot be removed");
  }
}

void remove_whole(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  throw_unless_removed(path, error);
}

TensorMap read_checked(const std::string& path, const ManifestFile& file) {
  return files::read_safetensors(path + "/" + file.name, file.digest).tensors;
}

// "DIR/step-N" must contain step N: renaming a folder does not make it the newest. Other names are not checked.
void check_name(const std::string& path, const Manifest& manifest) {
  const fs::path normal = fs::path(path + "/").lexically_normal().parent_path();  // without slashes at its end
  const auto step = step_of(normal.filename().string());
  NARROWCAST_CHECK_INPUT(!step.has_value() || *step == manifest.step, path, "/", kManifestName, ": is of step ",
                         manifest.step, ", but its folder is named as that of step ", step.value_or(0));
}

// Not from LibTorch's generators, whose state belongs to the training.
std::string random_text() {
  std::random_device device;
  return std::to_string(device()) + "-" + std::to_string(device());
}

// Removes probes of processes that were killed while they wrote one.
void remove_probes(const std::string& folder) {
  const std::string begin = fs::path(kProbeName).filename();
  std::error_code ignored;  // A file that stays is hidden and small.
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    if (entry.path().filename().string().starts_with(begin)) {
      fs::remove(entry.path(), ignored);
    }
  }
}

// Nothing is changed before this job owns the folder: an unfinished checkpoint may be one that another job is writing.
std::unique_ptr<FolderOwner> make_ready(const std::string& folder, Existing existing, const FolderUser& user) {
  const std::string reason = files::try_to_make_folder(folder);
  TORCH_CHECK_VALUE(reason.empty(), "cannot be created: ", reason);
  auto owner =
      std::make_unique<FolderOwner>(folder, this_writer(user.job), OwnerTimes{.own_job_is_lost = user.has_recovered});
  remove_unfinished(folder);
  remove_probes(folder);
  for (const int64_t step : checkpoint_steps(folder)) {
    TORCH_CHECK_VALUE(existing != Existing::kRefuse, holds_checkpoints(step));
    if (existing == Existing::kRemove) {
      remove_checkpoint(folder, step);
    }
  }
  return owner;
}

void write_probe(const std::string& folder, const std::string& text) {
  files::AtomicFile probe(folder + kProbeName);
  probe.write(text);
  probe.commit();
}

void check_probe(const std::string& folder, const std::string& text) {
  const bool is_there = ::access((folder + kProbeName).c_str(), R_OK) == 0;
  TORCH_CHECK_VALUE(is_there && files::read_file(folder + kProbeName) == text,
                    "does not contain the file that rank 0 wrote: all nodes must share this folder");
}

// Rank 0's list, so that all ranks try the same ones in the same order.
std::vector<int64_t> agreed_steps(const ProcessGroupPtr& group, const std::string& folder) {
  std::vector<int64_t> steps;
  const std::string failure = first_failure(group, [&] {
    if (group->getRank() == 0) {
      steps = checkpoint_steps(folder);
    }
  });
  TORCH_CHECK_VALUE(failure.empty(), "checkpoint_dir: ", failure);
  const std::string list = from_rank_0(group, absl::StrJoin(steps, ","));
  steps.clear();
  for (const auto text : absl::StrSplit(list, ',', absl::SkipEmpty())) {
    int64_t step = 0;
    TORCH_CHECK_WITH(DistBackendError, absl::SimpleAtoi(text, &step),
                     "rank 0 sent a text that is not a list of steps: ", in_quotes(list));
    steps.push_back(step);
  }
  return steps;
}

// Returns an empty text, or the reason why no rank can resume from this checkpoint. The same on all ranks.
std::string try_to_read(const ProcessGroupPtr& group, const std::string& path, std::optional<ReadCheckpoint>& read) {
  const std::string failure =
      first_failure(group, [&] { read = read_checkpoint(path, group->getRank(), group->getSize()); });
  if (!failure.empty()) {
    return failure;
  }
  files::Sha256 hash;
  hash.update(format_manifest(read->manifest));
  return first_failure(group, [&, own = hash.hex(), agreed = from_rank_0(group, hash.hex())] {
    NARROWCAST_CHECK_INPUT(agreed == own, path, "/", kManifestName, ": differs from the one that rank 0 reads");
  });
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
      "holds checkpoints already, the newest of step %d; --resume resumes from it, --overwrite removes "
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
  throw_unless_removed(path, error);
  pass(Failpoint::kCheckpointSetAside);
  remove_whole(aside);
}

bool has_checkpoint_of(const std::string& folder, const std::string& run_id) {
  return std::ranges::any_of(checkpoint_steps(folder), [&](int64_t step) {
    const std::string path = checkpoint_path(folder, step) + "/" + kManifestName;
    try {
      return parse_manifest(files::read_file(path, {.most_bytes = kLargestManifest}), path).run_id == run_id;
    } catch (const c10::Error&) {
      return false;  // A job that resumes reports the problem.
    }
  });
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

std::unique_ptr<FolderOwner> prepare_folder(const ProcessGroupPtr& group, const std::string& folder, Existing existing,
                                            const FolderUser& user) {
  const bool is_rank_0 = group->getRank() == 0;
  std::unique_ptr<FolderOwner> owner;
  const std::string text = from_rank_0(group, random_text());
  const std::string option = absl::StrCat("checkpoint_dir ", folder, ": ");
  const auto remove_probe = c10::make_scope_exit([&] {
    if (is_rank_0) {
      std::error_code ignored;
      fs::remove(folder + kProbeName, ignored);
    }
  });
  do_on_all_ranks(group, option, [&] {
    if (is_rank_0) {
      owner = make_ready(folder, existing, user);
      write_probe(folder, text);
    }
  });
  do_on_all_ranks(group, option, [&] { check_probe(folder, text); });
  return owner;
}

FoundCheckpoint find_newest(const ProcessGroupPtr& group, const std::string& folder, const Warn& warn) {
  FoundCheckpoint found;
  for (const int64_t step : agreed_steps(group, folder)) {
    std::optional<ReadCheckpoint> read;
    const std::string failure = try_to_read(group, checkpoint_path(folder, step), read);
    if (failure.empty()) {
      found.newest = std::move(read);
      return found;
    }
    found.invalid_steps.push_back(step);
    if (group->getRank() == 0) {
      warn(absl::StrCat("warning: skips the checkpoint of step ", step, ": ", failure));
    }
  }
  NARROWCAST_CHECK_INPUT(found.invalid_steps.empty(), "checkpoint_dir ", folder, ": none of its ",
                         found.invalid_steps.size(), " checkpoints is valid; remove them to start a new training");
  return found;
}

ReadCheckpoint read_on_all_ranks(const ProcessGroupPtr& group, const std::string& path) {
  std::optional<ReadCheckpoint> read;
  const std::string failure = try_to_read(group, path, read);
  NARROWCAST_CHECK_INPUT(failure.empty(), failure);
  return std::move(*read);
}

}  // namespace narrowcast::checkpoint
