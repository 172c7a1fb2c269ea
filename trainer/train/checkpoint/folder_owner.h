// A folder of checkpoints has one writer. Two jobs that use the same folder would remove each other's unfinished
// checkpoints and resume from each other's checkpoints.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace narrowcast::checkpoint {

// Identifies a process that writes checkpoints among all others, now and later.
struct Writer {
  std::string job = {};      // the run_id of its launcher; empty: none
  std::string host = {};     // the machine's name, for people
  std::string machine = {};  // the kernel's boot id: equal for processes that share a kernel, and thus its locks
  int64_t pid = 0;
  std::string since = {};  // when it took the folder, in UTC

  bool operator==(const Writer&) const = default;
};

// This process, now.
Writer this_writer(const std::string& job);

// How a writer signals to other machines that it is alive, and how long others wait for that signal.
struct OwnerTimes {
  std::chrono::milliseconds beat{3'000};      // interval at which it increments the counter in the file
  std::chrono::milliseconds silence{10'000};  // the owner is dead if its counter stays unchanged; several beats
  // The time to wait for an owner of the same job: a launcher that restarts a job cannot see a lost node, whose rank 0
  // may take a while to end.
  std::chrono::milliseconds own_job{30'000};
  // Whether an owner of the same job on another machine is known to be lost, as ranks know that have recovered in
  // place. Then the folder is taken at once.
  bool own_job_is_lost = false;
};

// The content of an owner's file.
struct OwnerRecord {
  Writer writer;
  int64_t beat = 0;

  bool operator==(const OwnerRecord&) const = default;
};

// Owns a folder during its lifetime, by two means:
//   - A lock (flock) on the file owner.json in it. The kernel releases it however the process ends.
//   - A counter in that file, which the owner increments. It is for other machines, since not every network file system
//     shares locks.
//
// The destructor removes the file. A killed owner's file stays, and does not hinder the next owner.
class FolderOwner {
 public:
  static constexpr const char* kFileName = "owner.json";

  // Takes an existing folder. If its owner is dead, it is taken at once if the owner ran on this machine, else once the
  // counter has not changed for OwnerTimes::silence. The constructor waits up to OwnerTimes::own_job for an owner of
  // the same job, and for a file that cannot be read. Throws c10::ValueError if another process owns the folder (the
  // message names the owner, but omits the folder), or with the reason if the file cannot be read or written. Assumes
  // that processes that share a kernel see each other's locks.
  FolderOwner(const std::string& folder, Writer self, const OwnerTimes& times = {});
  ~FolderOwner();
  FolderOwner(const FolderOwner&) = delete;
  FolderOwner& operator=(const FolderOwner&) = delete;

  // Throws OutputError naming the new owner if another machine's process has taken the folder, because this one did not
  // increment the counter for too long (it was stopped, or its file system did not answer). It also throws if the owner
  // is unknown: the file is missing or, for OwnerTimes::silence, cannot be read or is not an owner's. After that,
  // nothing may be written to the folder.
  void check() const;

 private:
  class Beat;

  std::string folder_;
  Writer self_;
  std::chrono::milliseconds patience_;
  std::unique_ptr<Beat> beat_;
};

// The current content of the file on the disk or the server. Empty if there is no such file, it has other content or it
// cannot be read.
std::optional<OwnerRecord> read_owner(const std::string& folder);

}  // namespace narrowcast::checkpoint
