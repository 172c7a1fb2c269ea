// Processes that cannot outlive the launcher, and pipes to them.
//
// Each worker leads a process group of its own, so that one signal reaches it and what it starts, and gets SIGKILL from
// the kernel when the launcher dies. What the worker started does not: for that the launcher has a guard, a second
// process that only waits for the launcher's end of a pipe to close, and then kills the groups.
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

// A pipe whose ends programs started later do not inherit. Throws c10::Error.
Pipe make_pipe();

// The guard process. It ends when this object or the launcher does; if something else ends it, another takes its place.
class Guard {
 public:
  // Starts it. Throws c10::Error.
  Guard();
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;
  ~Guard();

  pid_t pid() const { return pid_; }

  // Where a child tells the guard its process group, before it becomes a worker.
  int announcements() const { return announcements_.get(); }

  // If the guard has died, starts another, which is told of all groups. Throws c10::Error.
  void revive();

  // A child has told the guard of `group`: so must revive().
  void remember(pid_t group) { groups_.push_back(group); }

  // Forget all groups: nothing is left in them.
  void forget();

 private:
  void start();

  FileDescriptor announcements_;
  pid_t pid_ = 0;
  std::vector<pid_t> groups_;
};

// Where a child's standard output and error go; -1: where the launcher's go.
struct ChildStreams {
  int output = -1;
  int error = -1;
};

// Starts `command` with /dev/null as standard input, no signals blocked and no other descriptors of ours, watched by
// `guard`, which is revived if need be. Throws c10::ValueError with the reason if it cannot be executed.
pid_t start_child(const WorkerCommand& command, ChildStreams streams, Guard& guard);

// A process that this one must wait for, though it did not start it as a worker.
struct AdoptedChild {
  pid_t pid = 0;
  bool ended = false;  // and waits to be reaped
};

// Opens /dev/null for each of the standard streams that this process was started
// without, so that no other descriptor gets its number.
void open_missing_streams();

// Runs body() in a process of its own and waits for it. Returns what it returned, 0 to 255; -1 if there was no such
// process, or a signal ended it. The caller has one thread.
int run_in_child(int (*body)());

// Makes this process the parent of orphans among its descendants. Throws c10::Error.
void adopt_orphans();

// The children of this process by /proc, in no order.
std::vector<AdoptedChild> list_children();

}  // namespace narrowcast::launcher
