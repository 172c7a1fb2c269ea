// Writes checkpoints.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <narrowcast/process_group.h>
#include "trainer/train/checkpoint/folder_owner.h"
#include "trainer/train/checkpoint/manifest.h"

namespace narrowcast::checkpoint {

struct WriterOptions {
  std::string folder;
  int64_t keep = 2;  // number of newest checkpoints to keep, >= 1; 0: all
  // The step of a checkpoint that this training has written before it recovered in place, the same on all ranks. It is
  // not written again.
  std::optional<int64_t> written = {};
};

// The parts of every manifest that stay the same.
struct Description {
  nlohmann::json settings = nlohmann::json::object();
  nlohmann::json circumstances = nlohmann::json::object();
  std::string run_id = {};  // of the launcher's job; empty: no name
};

// The result of writing a checkpoint.
struct WriteReport {
  std::string path;
  int64_t bytes = 0;  // of all files except the manifest
};

// Each write is a collective:
//
//   - Before: every rank has its content, the same step on all. Rank 0 checks that the folder still belongs to the job,
//     and makes the folder step-S.unfinished.
//   - Files: every rank writes its own state durably. Rank 0 writes the replica as well.
//   - Completion: all ranks learn the digests of all files. Rank 0 checks the owner again, since large files take
//     long. It writes the manifest with the digests durably, and renames the folder to step-S. Now the checkpoint
//     exists.
//   - Old ones: rank 0 removes the checkpoints that are no longer among the newest `keep`.
//   - After: all ranks know that the checkpoint exists.
//
// If a process ends in between, earlier checkpoints stay as they were.
class CheckpointWriter {
 public:
  // The folder must be prepared: `owner` is the result of prepare_folder. `invalid_steps` are the invalid checkpoints
  // in it: they do not count as kept ones, and the next write removes them.
  CheckpointWriter(ProcessGroupPtr group, WriterOptions options, Description description,
                   const std::vector<int64_t>& invalid_steps = {}, std::unique_ptr<FolderOwner> owner = nullptr);

  // Throws OutputError, the same on all ranks, naming rank, file and reason, if:
  //   - a file cannot be written; the unfinished checkpoint is then removed,
  //   - an old checkpoint cannot be removed,
  //   - another job has taken over the folder, which is then left as it is.
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
