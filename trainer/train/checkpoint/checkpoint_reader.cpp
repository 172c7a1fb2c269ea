#include "trainer/train/checkpoint/checkpoint_reader.h"
#include "trainer/ddp/process_group/first_failure.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>
#include <c10/util/Exception.h>

#include <narrowcast/errors.h>
#include "trainer/base/files/text.h"
#include "trainer/train/files/file_io.h"

namespace narrowcast::checkpoint {
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
