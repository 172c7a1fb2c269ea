// A folder of checkpoints has one writer. Two jobs that were given the same folder would remove each other's unfinished
// checkpoints and resume from each other's past.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace narrowcast::checkpoint {

// What tells a process that writes checkpoints from all others, now and later.
struct Writer {
  std::string job = {};      // the run_id of its launcher; empty: it has none
  std::string host = {};     // the machine's name, for people
  std::string machine = {};  // equal where processes share a kernel, and with it its locks: the kernel's boot id
  int64_t pid = 0;
  std::string since = {};  // when it took the folder, in UTC

  bool operator==(const Writer&) const = default;
};

// This process, now.
Writer this_writer(const std::string& job);

// How a writer shows to other machines that it lives, and how long the next one is patient.
struct OwnerTimes {
  std::chrono::milliseconds beat{3'000};      // how often it counts on in the file
  std::chrono::milliseconds silence{10'000};  // after which one that does not count on is dead; some beats long
  // To wait for one of the same job: a launcher that starts a job again cannot see a node that it has lost, whose rank
  // 0 may take a while to end.
  std::chrono::milliseconds own_job{30'000};
};

// What the file of an owner holds.
struct OwnerRecord {
  Writer writer;
  int64_t beat = 0;

  bool operator==(const OwnerRecord&) const = default;
};

// Owns a folder as long as it lives, by two means: a lock (flock) on the file owner.json in it, which the kernel takes
// back when the process ends, however it does; and a count in that file that goes on, for machines whose locks this one
// does not see, since not every network file system passes them on. The file goes with its owner; of one that was
// killed it stays, which means nothing to the next.
class FolderOwner {
 public:
  static constexpr const char* kFileName = "owner.json";

  // Takes the folder, which is there. That of an owner that is dead is taken at once if it ran on this machine, else
  // when it has been silent for so long. One of the same job is waited for, and as long a file that cannot be read.
  // Throws c10::ValueError, with the owner but without the folder's name, if another process has it, or saying why the
  // file cannot be read or written. Assumes that the locks of processes that share a kernel meet.
  FolderOwner(const std::string& folder, Writer self, const OwnerTimes& times = {});
  ~FolderOwner();
  FolderOwner(const FolderOwner&) = delete;
  FolderOwner& operator=(const FolderOwner&) = delete;

  // Throws OutputError naming the other one if another machine's process has taken the folder, because this one was
  // silent for too long (stopped, or its file system did not answer); also if that cannot be told, because the file is
  // gone or, for OwnerTimes::silence, cannot be read or is no owner's. Nothing may be written there any more.
  void check() const;

 private:
  class Beat;

  std::string folder_;
  Writer self_;
  std::chrono::milliseconds patience_;
  std::unique_ptr<Beat> beat_;
};

// What is in the file, as it is now on the disk or on the server; nothing if there is no such file, if it holds
// something else or if it cannot be read.
std::optional<OwnerRecord> read_owner(const std::string& folder);

}  // namespace narrowcast::checkpoint
