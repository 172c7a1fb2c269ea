#include "trainer/train/checkpoint/checkpoint_writer.h"

#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

#include <filesystem>
#include <functional>
#include <numeric>
#include <system_error>
#include <utility>

#include <narrowcast/consensus.h>
#include <narrowcast/errors.h>
#include "trainer/base/files/json.h"
#include "trainer/base/process/failpoint.h"
#include "trainer/ddp/process_group/first_failure.h"
#include "trainer/train/checkpoint/checkpoint_folder.h"
#include "trainer/train/files/file_io.h"
#include "trainer/train/files/safetensors.h"

namespace narrowcast::checkpoint {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

void make_folder(const std::string& path) {
  std::error_code error;
  fs::create_directory(path, error);
  TORCH_CHECK_VALUE(!error, path, ": cannot be created: ", error.message());
}

ManifestFile write_file(const std::string& folder, const std::string& name, const TensorMap& tensors) {
  return {name, files::write_safetensors(folder + "/" + name, {.tensors = tensors, .metadata = {}})};
}

// One rank's list of files, as a text for the other ranks.
std::string to_text(const std::vector<ManifestFile>& files) {
  json list = json::array();
  for (const ManifestFile& file : files) {
    list.push_back({file.name, file.digest.bytes, file.digest.sha256});
  }
  return list.dump();
}

// `text` is the list that `rank` sent.
void append_from_text(std::vector<ManifestFile>& files, const std::string& text, size_t rank) {
  const auto is_entry = [](const json& entry) {
    return entry.is_array() && entry.size() == 3 && entry[0].is_string() && entry[1].is_number_integer() &&
           entry[2].is_string();
  };
  const files::ListOfRank list{.text = text, .rank = rank, .what = "the files that it wrote"};
  for (const json& entry : files::parse_list(list, is_entry)) {
    files.push_back({entry[0].get<std::string>(), {entry[1].get<int64_t>(), entry[2].get<std::string>()}});
  }
}

void write_manifest(const std::string& folder, const Manifest& manifest) {
  files::AtomicFile file(folder + "/" + kManifestName);
  file.write(format_manifest(manifest));
  file.commit();
}

// Of the files that this rank sees.
int64_t bytes_of_checkpoint(const std::string& folder, int64_t step) {
  std::error_code error;
  int64_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(checkpoint_path(folder, step), error)) {
    if (entry.path().extension() == ".safetensors") bytes += static_cast<int64_t>(entry.file_size(error));
  }
  return bytes;
}

void rename_folder(const std::string& from, const std::string& to) {
  std::error_code error;
  fs::rename(from, to, error);
  TORCH_CHECK_VALUE(!error, to, ": cannot be created: ", error.message());
}

}  // namespace

CheckpointWriter::CheckpointWriter(ProcessGroupPtr group, WriterOptions options, Description description,
                                   const std::vector<int64_t>& invalid_steps, std::unique_ptr<FolderOwner> owner)
    : group_(std::move(group)),
      options_(std::move(options)),
      description_(std::move(description)),
      owner_(std::move(owner)),
      invalid_steps_(invalid_steps.begin(), invalid_steps.end()) {
  TORCH_CHECK_VALUE(options_.keep >= 0, "keep_checkpoints: must be at least 0, but is ", options_.keep);
}

WriteReport CheckpointWriter::write(const Content& content) {
  step_ = content.step;
  if (step_ == options_.written) {
    return {checkpoint_path(options_.folder, step_), bytes_of_checkpoint(options_.folder, step_)};
  }
  stop_if_lost();
  give_up_if(on_rank_0([&] { begin(); }));
  std::vector<ManifestFile> files = write_files(content);
  const int64_t bytes = std::accumulate(files.begin(), files.end(), int64_t{0},
                                        [](int64_t sum, const ManifestFile& file) { return sum + file.digest.bytes; });
  stop_if_lost();
  give_up_if(on_rank_0([&] { finish(content, std::move(files)); }));
  const std::string failure = on_rank_0([&] { remove_old(); });
  NARROWCAST_CHECK_OUTPUT(failure.empty(), "the checkpoint of step ", step_,
                          " is written, but an older one cannot be removed: ", failure);
  return {checkpoint_path(options_.folder, step_), bytes};
}

void CheckpointWriter::stop_if_lost() {
  const std::string lost = on_rank_0([&] {
    if (owner_) owner_->check();
  });
  NARROWCAST_CHECK_OUTPUT(lost.empty(), "the checkpoint of step ", step_, " cannot be written: ", lost);
}

// An existing checkpoint of this step was found invalid.
void CheckpointWriter::begin() {
  std::error_code ignored;
  fs::remove_all(unfinished_path(options_.folder, step_), ignored);  // If it stays, the next line throws.
  if (fs::exists(checkpoint_path(options_.folder, step_), ignored)) {
    remove_checkpoint(options_.folder, step_);
    invalid_steps_.erase(step_);
  }
  make_folder(unfinished_path(options_.folder, step_));
  pass(Failpoint::kCheckpointFolderMade);
}

// Returns the replica's entry, then the ranks' in order.
std::vector<ManifestFile> CheckpointWriter::write_files(const Content& content) {
  const std::string folder = unfinished_path(options_.folder, step_);
  const int64_t rank = group_->getRank();
  std::vector<ManifestFile> own;
  give_up_if(first_failure(group_, [&] {
    if (rank == 0) {
      own.push_back(write_file(folder, kReplicaName, content.replica));
    }
    own.push_back(write_file(folder, rank_file_name(rank), content.rank));
  }));
  std::vector<ManifestFile> all;
  const std::vector<std::string> texts = all_gather_text(group_, to_text(own));
  for (size_t writer = 0; writer < texts.size(); ++writer) {
    append_from_text(all, texts[writer], writer);
  }
  return all;
}

void CheckpointWriter::finish(const Content& content, std::vector<ManifestFile> files) {
  const std::string folder = unfinished_path(options_.folder, step_);
  pass(Failpoint::kCheckpointFilesWritten);
  write_manifest(folder, {.step = step_,
                          .world_size = group_->getSize(),
                          .files = std::move(files),
                          .settings = description_.settings,
                          .circumstances = description_.circumstances,
                          .training = content.training,
                          .run_id = description_.run_id});
  pass(Failpoint::kCheckpointManifestWritten);
  rename_folder(folder, checkpoint_path(options_.folder, step_));
  pass(Failpoint::kCheckpointRenamed);
  files::sync_folder(options_.folder);
  pass(Failpoint::kCheckpointSynced);
}

void CheckpointWriter::remove_old() {
  int64_t kept = 0;
  for (const int64_t step : checkpoint_steps(options_.folder)) {
    const bool is_invalid = invalid_steps_.count(step) > 0;
    if (is_invalid || (options_.keep > 0 && kept == options_.keep)) {
      remove_checkpoint(options_.folder, step);
    } else {
      ++kept;
    }
  }
  invalid_steps_.clear();
  pass(Failpoint::kCheckpointsRemoved);
}

std::string CheckpointWriter::on_rank_0(const std::function<void()>& body) {
  return first_failure(group_, [&] {
    if (group_->getRank() == 0) {
      body();
    }
  });
}

void CheckpointWriter::give_up_if(const std::string& failure) {
  if (failure.empty()) {
    return;
  }
  if (group_->getRank() == 0) {
    std::error_code ignored;
    fs::remove_all(unfinished_path(options_.folder, step_), ignored);
  }
  NARROWCAST_CHECK_OUTPUT(false, "the checkpoint of step ", step_, " cannot be written: ", failure,
                          "; earlier checkpoints are kept");
}

}  // namespace narrowcast::checkpoint
