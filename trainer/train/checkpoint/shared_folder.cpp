#include "trainer/train/checkpoint/shared_folder.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>
#include <c10/util/Exception.h>
#include <unistd.h>

#include <filesystem>
#include <random>
#include <system_error>

#include <narrowcast/errors.h>
#include "trainer/base/files/open_file.h"
#include "trainer/base/files/text.h"
#include "trainer/ddp/process_group/first_failure.h"
#include "trainer/train/checkpoint/checkpoint_folder.h"
#include "trainer/train/files/file_io.h"

namespace narrowcast::checkpoint {
namespace {

constexpr const char* kProbeName = "/.shared-folder-probe";

// Not from LibTorch's generators, whose state is the training's.
std::string random_text() {
  std::random_device device;
  return std::to_string(device()) + "-" + std::to_string(device());
}

void make_ready(const std::string& folder, Existing existing) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  TORCH_CHECK_VALUE(!error, "cannot be made: ", error.message());
  remove_unfinished(folder);
  for (const int64_t step : checkpoint_steps(folder)) {
    TORCH_CHECK_VALUE(existing != Existing::kRefuse, holds_checkpoints(step));
    if (existing == Existing::kRemove) {
      remove_checkpoint(folder, step);
    }
  }
}

void write_probe(const std::string& folder, const std::string& text) {
  files::AtomicFile probe(folder + kProbeName);
  probe.write(text);
  probe.commit();
}

void check_probe(const std::string& folder, const std::string& text) {
  const bool is_there = ::access((folder + kProbeName).c_str(), R_OK) == 0;
  TORCH_CHECK_VALUE(is_there && files::read_file(folder + kProbeName) == text,
                    "does not hold what rank 0 wrote there: all nodes must share this folder");
}

}  // namespace

void prepare_folder(const ProcessGroupPtr& group, const std::string& folder, Existing existing) {
  const bool is_rank_0 = group->getRank() == 0;
  const std::string text = from_rank_0(group, random_text());
  std::string failure = first_failure(group, [&] {
    if (is_rank_0) {
      make_ready(folder, existing);
      write_probe(folder, text);
    }
  });
  if (failure.empty()) {
    failure = first_failure(group, [&] { check_probe(folder, text); });
  }
  if (is_rank_0) {
    std::error_code ignored;
    std::filesystem::remove(folder + kProbeName, ignored);
  }
  TORCH_CHECK_VALUE(failure.empty(), "checkpoint_dir ", folder, ": ", failure);
}

namespace {

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
                     "rank 0 sent something other than steps: ", in_quotes(list));
    steps.push_back(step);
  }
  return steps;
}

// Returns nothing, or why no rank can resume from this checkpoint; the same on all ranks.
std::string try_to_read(const ProcessGroupPtr& group, const std::string& path, std::optional<ReadCheckpoint>& read) {
  const std::string failure =
      first_failure(group, [&] { read = read_checkpoint(path, group->getRank(), group->getSize()); });
  if (!failure.empty()) {
    return failure;
  }
  files::Sha256 hash;
  hash.update(format_manifest(read->manifest));
  return first_failure(group, [&, own = hash.hex(), agreed = from_rank_0(group, hash.hex())] {
    NARROWCAST_CHECK_INPUT(agreed == own, path, "/", kManifestName, ": is not the one that rank 0 reads");
  });
}

}  // namespace

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
                         found.invalid_steps.size(), " checkpoints is valid; remove them to start anew");
  return found;
}

ReadCheckpoint read_on_all_ranks(const ProcessGroupPtr& group, const std::string& path) {
  std::optional<ReadCheckpoint> read;
  const std::string failure = try_to_read(group, path, read);
  NARROWCAST_CHECK_INPUT(failure.empty(), failure);
  return std::move(*read);
}

}  // namespace narrowcast::checkpoint
