#include "trainer/train/checkpoint/folder_owner.h"

#include <absl/strings/str_cat.h>
#include <absl/time/clock.h>
#include <absl/time/time.h>
#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <nlohmann/json.hpp>
#include <stop_token>
#include <thread>
#include <utility>

#include <narrowcast/errors.h>
#include "ops/common/file_descriptor.h"
#include "ops/common/text.h"
#include "trainer/base/files/hash.h"
#include "trainer/base/files/json.h"
#include "trainer/base/files/open_file.h"
#include "trainer/base/process/failpoint.h"
#include "trainer/train/files/file_io.h"

namespace narrowcast::checkpoint {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Writer, job, host, machine, pid, since)

namespace {

using nlohmann::json;

// All records have the same length, so that a record replaces another in place and needs no room on a full disk.
constexpr size_t kRecordBytes = 4096;
constexpr size_t kLongestName = 500;
constexpr std::chrono::milliseconds kMoment{20};  // until a file is read again

std::string owner_path(const std::string& folder) { return folder + "/" + FolderOwner::kFileName; }

std::string to_text(const OwnerRecord& record) {
  json object = record.writer;
  object["beat"] = record.beat;
  std::string text = object.dump(-1, ' ', false, json::error_handler_t::replace);
  TORCH_INTERNAL_ASSERT(text.size() < kRecordBytes, "a record of ", text.size(), " bytes");
  text.resize(kRecordBytes - 1, ' ');
  return text + "\n";
}

std::optional<OwnerRecord> parse(const std::string& text) {
  const files::ParsedJson parsed = files::try_parse_json(text);
  if (!parsed.problem.empty()) return std::nullopt;
  try {
    return OwnerRecord{.writer = parsed.value.get<Writer>(), .beat = parsed.value.at("beat").get<int64_t>()};
  } catch (const json::exception&) {
    return std::nullopt;
  }
}

std::string describe(const Writer& writer) {
  const std::string job = writer.job.empty() ? "" : absl::StrCat(" of the job ", in_quotes(writer.job));
  return absl::StrCat("process ", writer.pid, " on ", printable(writer.host), job, " (since ", printable(writer.since),
                      ")");
}

[[noreturn]] void refuse(const std::optional<OwnerRecord>& owner) {
  TORCH_CHECK_VALUE(false, "is in use by ", owner ? describe(owner->writer) : "another process",
                    "; give each job a separate folder");
}

// Somebody may have put anything there: a pipe, opened without O_NONBLOCK, would wait for its other end for ever.
constexpr int kFlagsOfAnOwnerFile = O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY;
constexpr const char* kNoRegularFile = "it is not a regular file";

bool is_regular(const FileDescriptor& file) {
  struct stat status {};
  return ::fstat(file.get(), &status) == 0 && S_ISREG(status.st_mode);
}

FileDescriptor open_owner_file(const std::string& path, int more) {
  FileDescriptor file(::open(path.c_str(), O_RDWR | O_CREAT | kFlagsOfAnOwnerFile | more, 0644));
  if (!file.is_open()) files::throw_not_written(path, "cannot be created");
  TORCH_CHECK_VALUE(is_regular(file), path, ": cannot be created: ", kNoRegularFile);
  return file;
}

enum class Lock { kOurs, kTheirs, kNone };  // kNone: the file system has no locks.

Lock lock(const FileDescriptor& file) {
  while (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) return Lock::kTheirs;
    if (errno != EINTR) return Lock::kNone;
  }
  return Lock::kOurs;
}

// Whether the path still names the open file: its owner removes it when it ends.
bool is_at(const FileDescriptor& file, const std::string& path) {
  struct stat opened {};
  struct stat named {};
  return ::fstat(file.get(), &opened) == 0 && ::lstat(path.c_str(), &named) == 0 && opened.st_dev == named.st_dev &&
         opened.st_ino == named.st_ino;
}

// Returns false, with errno set, if it fails. Other machines must see the record, so it waits for the disk or the
// server.
bool write_record(const FileDescriptor& file, const OwnerRecord& record) {
  const std::string text = to_text(record);
  return ::pwrite(file.get(), text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()) &&
         ::ftruncate(file.get(), kRecordBytes) == 0 && ::fdatasync(file.get()) == 0;
}

// The result of reading the file. If it cannot be read at present, nothing follows, in particular not that nobody owns
// it.
struct Look {
  std::string failure = {};                // why it cannot be read; empty if it can be, or does not exist
  std::string text = {};                   // empty also if there is no such file
  std::optional<OwnerRecord> record = {};  // parsed text, if an owner wrote it
};

Look look_at(const std::string& folder) {
  // The file is opened in each call, so that a client of a network file system contacts its server.
  const FileDescriptor file(::open(owner_path(folder).c_str(), O_RDONLY | kFlagsOfAnOwnerFile));
  if (!file.is_open()) return {.failure = errno == ENOENT ? "" : files::reason(errno)};
  if (!is_regular(file)) return {.failure = kNoRegularFile};
  std::string text(kRecordBytes, '\0');
  const ssize_t bytes = ::pread(file.get(), text.data(), text.size(), 0);
  if (bytes < 0) return {.failure = files::reason(errno)};
  text.resize(static_cast<size_t>(bytes));
  return {.text = text, .record = parse(text)};
}

// As look_at, but reads the file again until `patience` has passed if it cannot be read, or if its text is not an
// owner's. A server may answer again, and without locks a record may become complete. After that it is a failure.
Look look_patiently(const std::string& folder, std::chrono::milliseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  const auto is_clear = [](const Look& look) { return look.failure.empty() && (look.text.empty() || look.record); };
  Look look = look_at(folder);
  while (!is_clear(look) && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(kMoment);
    look = look_at(folder);
  }
  if (!is_clear(look) && look.failure.empty()) look.failure = "it has other content";
  return look;
}

// The state of an owner, as observed for as long as others wait for it.
enum class Sign { kLives, kUnclear, kSilent };  // kUnclear: its file is gone, or could not be read at the end.

// Reads the file often, so that a change is noticed soon.
Sign watch(const std::string& folder, const std::string& before, std::chrono::milliseconds silence) {
  constexpr int kLooks = 40;
  Look now;
  for (int look = 0; look < kLooks; ++look) {
    std::this_thread::sleep_for(silence / kLooks);
    now = look_at(folder);
    if (!now.failure.empty()) continue;
    if (now.text.empty()) return Sign::kUnclear;
    if (now.text != before) return Sign::kLives;
  }
  return now.failure.empty() ? Sign::kSilent : Sign::kUnclear;
}

// Takes the file: writes this writer's record to it, and locks it if the file system has locks.
class Taking {
 public:
  Taking(const std::string& folder, const Writer& self, const OwnerTimes& times)
      : folder_(folder),
        path_(owner_path(folder)),
        self_(self),
        times_(times),
        patient_until_(std::chrono::steady_clock::now() + times.own_job) {}

  FileDescriptor take() {
    for (;;) {
      FileDescriptor file = open_owner_file(path_, 0);
      const Lock state = lock(file);
      if (!is_at(file, path_)) continue;
      if (state == Lock::kTheirs ? may_replace() : may_have(state)) {
        file = state == Lock::kTheirs ? replaced() : std::move(file);
        pass(Failpoint::kOwnerFileLocked);
        if (!write_record(file, {.writer = self_})) files::throw_not_written(path_);
        if (!is_at(file, path_)) continue;  // An owner whose lock this machine does not see has just ended.
        pass(Failpoint::kOwnerRecorded);
        return file;
      }
    }
  }

 private:
  // For a file that this writer has locked, or that cannot be locked. A record there is from a process that was killed,
  // or from another machine's owner whose lock this machine does not see. A process on this kernel would hold the lock,
  // so it is dead. Without locks, other text may be an incomplete record.
  bool may_have(Lock state) {
    const Look look = look_at(folder_);
    if (!look.failure.empty()) return wait_or_give_up(look.failure);
    const bool has_no_lock = !look.record || look.record->writer.machine == self_.machine;
    return look.text.empty() || (state == Lock::kOurs && has_no_lock) || is_silent(look);
  }

  // For a file that another process has locked. On this kernel that process is alive. The lock of another machine's
  // process may outlive that machine on the server.
  bool may_replace() {
    const Look look = look_at(folder_);
    if (!look.failure.empty()) return wait_or_give_up(look.failure);
    if (!look.record || look.record->writer.machine == self_.machine) return wait_or_refuse(look.record);
    return is_silent(look);
  }

  // False if that is unclear: then the caller starts again.
  bool is_silent(const Look& look) {
    if (times_.own_job_is_lost && is_of_own_job(look.record)) return true;
    const Sign sign = watch(folder_, look.text, times_.silence);
    if (sign == Sign::kLives) {
      const Look now = look_at(folder_);
      return now.failure.empty() ? wait_or_refuse(now.record) : wait_or_give_up(now.failure);
    }
    return sign == Sign::kSilent;
  }

  // Returns false after a moment in which a server may answer again.
  bool wait_or_give_up(const std::string& failure) const {
    TORCH_CHECK_VALUE(std::chrono::steady_clock::now() < patient_until_, path_, ": cannot be read: ", failure);
    std::this_thread::sleep_for(kMoment);
    return false;
  }

  // A launcher without a job name calls every job "none".
  bool is_of_own_job(const std::optional<OwnerRecord>& owner) const {
    return owner && owner->writer.job == self_.job && !self_.job.empty() && self_.job != "none";
  }

  // Returns false after a moment in which the owner, an earlier rank 0 of this job, may have ended: then the caller
  // starts again.
  bool wait_or_refuse(const std::optional<OwnerRecord>& owner) const {
    if (!is_of_own_job(owner) || std::chrono::steady_clock::now() >= patient_until_) refuse(owner);
    std::this_thread::sleep_for(kMoment);
    return false;
  }

  // Replaces the file that another process has locked with a new file.
  FileDescriptor replaced() {
    // Processes of other machines and containers may have the same number.
    const std::string aside = absl::StrCat(path_, ".", absl::Hex(hash_of_content(to_text({.writer = self_}))));
    FileDescriptor file = open_owner_file(aside, O_TRUNC);
    lock(file);
    if (!write_record(file, {.writer = self_}) || ::rename(aside.c_str(), path_.c_str()) != 0) {
      const int error = errno;
      ::unlink(aside.c_str());
      TORCH_CHECK_VALUE(false, path_, ": cannot be replaced: ", files::reason(error));
    }
    return file;
  }

  const std::string& folder_;
  const std::string path_;
  const Writer& self_;
  const OwnerTimes& times_;
  const std::chrono::steady_clock::time_point patient_until_;
};

// The text in a form that fits into the record and is read back unchanged.
std::string name_of(const std::string& text) { return printable(text, kLongestName); }

}  // namespace

Writer this_writer(const std::string& job) {
  char host[256] = {};
  if (::gethostname(host, sizeof(host) - 1) != 0) host[0] = '\0';
  std::string machine = files::read_file("/proc/sys/kernel/random/boot_id");
  machine.erase(machine.find_last_not_of('\n') + 1);
  return {.job = name_of(job),
          .host = name_of(host),
          .machine = name_of(machine),
          .pid = ::getpid(),
          .since = absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::Now(), absl::UTCTimeZone())};
}

std::optional<OwnerRecord> read_owner(const std::string& folder) { return look_at(folder).record; }

// Increments the counter in the file, on a separate thread, as long as the file is this writer's.
class FolderOwner::Beat {
 public:
  Beat(std::string folder, Writer self, std::chrono::milliseconds every, FileDescriptor file)
      : folder_(std::move(folder)),
        self_(std::move(self)),
        file_(std::move(file)),
        thread_([this, every](const std::stop_token& stop) { run(stop, every); }) {}

  // The lock ends with the file.
  ~Beat() {
    thread_.request_stop();
    thread_.join();
    const std::optional<OwnerRecord> owner = read_owner(folder_);
    if (owner.has_value() && owner->writer == self_) ::unlink(owner_path(folder_).c_str());
  }
  Beat(const Beat&) = delete;
  Beat& operator=(const Beat&) = delete;

 private:
  void run(const std::stop_token& stop, std::chrono::milliseconds every) {
    std::unique_lock<std::mutex> lock(mutex_);
    for (int64_t beat = 1;; ++beat) {
      stopped_.wait_for(lock, stop, every, [] { return false; });
      if (stop.stop_requested()) return;
      const std::optional<OwnerRecord> owner = read_owner(folder_);
      if (owner.has_value() && owner->writer != self_) return;  // check() reports it before the next checkpoint.
      // If the record cannot be written, others must see a missing heartbeat.
      static_cast<void>(write_record(file_, {.writer = self_, .beat = beat}));
    }
  }

  const std::string folder_;
  const Writer self_;
  const FileDescriptor file_;
  std::mutex mutex_;
  std::condition_variable_any stopped_;
  std::jthread thread_;  // Last: the thread uses the members above.
};

FolderOwner::FolderOwner(const std::string& folder, Writer self, const OwnerTimes& times)
    : folder_(folder), self_(std::move(self)), patience_(times.silence) {
  FileDescriptor file = Taking(folder_, self_, times).take();
  beat_ = std::make_unique<Beat>(folder_, self_, times.beat, std::move(file));
}

FolderOwner::~FolderOwner() = default;

void FolderOwner::check() const {
  const Look look = look_patiently(folder_, patience_);
  const std::string path = owner_path(folder_);
  NARROWCAST_CHECK_OUTPUT(look.failure.empty(), path,
                          ": cannot be read; another job may have taken over the folder: ", look.failure);
  NARROWCAST_CHECK_OUTPUT(!look.text.empty(), path,
                          ": is missing; another job may have used the folder. Only the owner of the folder may "
                          "remove it");
  NARROWCAST_CHECK_OUTPUT(look.record->writer == self_, folder_, ": has been taken over by ",
                          describe(look.record->writer), ", because this job sent no heartbeat for a while");
}

}  // namespace narrowcast::checkpoint
