// Processes that cannot outlive the launcher, and pipes to them.
//
// Each worker leads its own process group, so that one signal reaches it and all processes that it starts. When the
// launcher dies the kernel sends SIGKILL to the worker alone. The processes that a worker started need a guard: a
// second process that waits until the launcher's end of a pipe closes, and then kills the groups.
#pragma once

#include <sys/types.h>

#include <vector>

#include "ops/common/file_descriptor.h"
#include "trainer/launcher/posix/worker_runner.h"

namespace narrowcast::launcher {

// The two ends of a pipe.
struct Pipe {
  FileDescriptor read_end;
  FileDescriptor write_end;
};

// A pipe whose ends are not inherited by programs started later. Throws c10::Error.
Pipe make_pipe();

// The guard process. It ends when this object or the launcher does. If it is ended otherwise, revive() starts another.
class Guard {
 public:
  // Starts the guard. Throws c10::Error.
  Guard();
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;
  ~Guard();

  pid_t pid() const { return pid_; }

  // The pipe into which a child writes its process group before it becomes a worker.
  int announcements() const { return announcements_.get(); }

  // If the guard has died, starts another and passes all groups to it. Throws c10::Error.
  void revive();

  // Records that a child has written `group` to the guard, for revive().
  void remember(pid_t group) { groups_.push_back(group); }

  // Makes the guard forget all groups, because nothing is left in them.
  void forget();

  // Makes the guard forget one group. Must be called before the id of its process can be reused.
  void forget(pid_t group);

 private:
  void start();
  void announce(pid_t group) const;

  FileDescriptor announcements_;
  pid_t pid_ = 0;
  std::vector<pid_t> groups_;
};

// Descriptors of a child's standard output and error; -1: the launcher's.
struct ChildStreams {
  int output = -1;
  int error = -1;
};

// Starts `command` with /dev/null as standard input, no blocked signals and no other descriptors of the launcher.
// `guard` watches it, and is revived if necessary. Throws c10::ValueError with the reason if it cannot be executed.
pid_t start_child(const WorkerCommand& command, ChildStreams streams, Guard& guard);

// Opens /dev/null for each standard stream that was closed at the start of this process, so that no other descriptor
// gets its number.
void open_missing_streams();

// Runs body() in a child process and waits for it. Returns its result, 0 to 255, or -1 if the process could not be
// started or a signal ended it. The caller must have one thread.
int run_in_child(int (*body)());

// Makes this process the parent of orphans among its descendants. Throws c10::Error.
void adopt_orphans();

}  // namespace narrowcast::launcher
