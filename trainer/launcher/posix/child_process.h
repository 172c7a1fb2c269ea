// Processes that cannot outlive the launcher.
//
// Each worker leads a process group of its own, so that one signal reaches it and
// what it starts, and gets SIGKILL from the kernel when the launcher dies. What the
// worker started does not: for that the launcher has a guard, a second process that
// only waits for the launcher's end of a pipe to close, and then kills the groups.
#pragma once

#include <sys/types.h>

#include "trainer/files/file_descriptor.h"
#include "trainer/launcher/worker_runner.h"

namespace narrowcast::launcher {

// The guard process. It ends when this object or the launcher does.
class Guard {
 public:
  // Starts it; to be made before the launcher has a second thread. Throws c10::Error.
  Guard();
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;
  ~Guard();

  pid_t pid() const { return pid_; }

  // Where a child tells the guard its process group, before it becomes a worker.
  int announcements() const { return announcements_.get(); }

  // Forget all groups: nothing is left in them.
  void forget();

 private:
  files::FileDescriptor announcements_;
  pid_t pid_ = 0;
};

// Where a child's standard output and error go; -1: where the launcher's go.
struct ChildStreams {
  int output = -1;
  int error = -1;
};

// Starts `command` with /dev/null as standard input, no signals blocked and no other
// descriptors of ours. Throws c10::ValueError with the reason if it cannot be executed.
pid_t start_child(const WorkerCommand& command, ChildStreams streams, const Guard& guard);

// A process that this one must wait for, though it did not start it as a worker.
struct AdoptedChild {
  pid_t pid = 0;
  bool ended = false;  // and waits to be reaped
};

// Opens /dev/null for each of the standard streams that this process was started
// without, so that no other descriptor gets its number.
void open_missing_streams();

// Makes this process the parent of orphans among its descendants. Throws c10::Error.
void adopt_orphans();

// The children of this process by /proc, in no order.
std::vector<AdoptedChild> list_children();

}  // namespace narrowcast::launcher
