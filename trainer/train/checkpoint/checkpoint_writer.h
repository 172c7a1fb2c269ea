// Writes checkpoints.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include <narrowcast/process_group.h>
#include "trainer/train/checkpoint/folder_owner.h"
#include "trainer/train/checkpoint/manifest.h"

namespace narrowcast::checkpoint {

struct WriterOptions {
  std::string folder;
  int64_t keep = 2;  // newest checkpoints that stay, >= 1; 0: all
};

// What goes into every manifest.
struct Description {
  nlohmann::json settings = nlohmann::json::object();
  nlohmann::json circumstances = nlohmann::json::object();
  std::string run_id = {};  // of the launcher's job; empty: it has no name
};

// A checkpoint as it was written.
struct WriteReport {
  std::string path;
  int64_t bytes = 0;  // of all files but the manifest
};

// Each write is a collective:
//
//   Before: every rank has its content, the same step on all. Rank 0 sees whether the folder is still the job's, and
//           makes the folder step-S.unfinished.
//   files:  every rank writes what is its own, rank 0 the replica as well, durably.
//   whole:  all ranks learn the digests of all files. Rank 0 sees once more whose the folder is, since large files take
//           long; writes the manifest with them, durably, and renames the folder to step-S: from here on there is a
//           checkpoint.
//   old:    rank 0 removes the checkpoints that are no longer among the newest `keep`.
//   After:  all ranks know that it is there.
//
// Whoever ends in between, what was there before is as it was.
class CheckpointWriter {
 public:
  // The folder is prepared: `owner` is what prepare_folder returned. `invalid_steps`: checkpoints in it that are not
  // valid; they do not count as kept ones, and go with the next write.
  CheckpointWriter(ProcessGroupPtr group, WriterOptions options, Description description,
                   const std::vector<int64_t>& invalid_steps = {}, std::unique_ptr<FolderOwner> owner = nullptr);

  // Throws OutputError, the same on all ranks, naming rank, file and reason, if a file cannot be written (what was
  // written of the checkpoint is removed then), an old checkpoint cannot be removed, or another job has taken over the
  // folder, which is not touched then.
  WriteReport write(const Content& content);

 private:
  void stop_if_lost();
  void begin();
  std::vector<ManifestFile> write_files(const Content& content);
  void finish(const Content& content, std::vector<ManifestFile> files);
  void remove_old();
  std::string on_rank_0(const std::function<void()>& body);
  void give_up_if(const std::string& failure);

  const ProcessGroupPtr group_;
  const WriterOptions options_;
  const Description description_;
  const std::unique_ptr<FolderOwner> owner_;  // on rank 0
  std::set<int64_t> invalid_steps_;
  int64_t step_ = 0;  // of the write in progress
};

}  // namespace narrowcast::checkpoint
