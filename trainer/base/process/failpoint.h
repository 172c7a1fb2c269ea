// Where a process can be made to end as if it was killed, right between two steps that others see: how tests find out
// that nothing is lost at any of them. Only builds with NARROWCAST_FAILPOINTS end there; in others these are empty.
#pragma once

#include <cstdint>

namespace narrowcast {

enum class Failpoint {
  // Of a file that is replaced as a whole (files::AtomicFile):
  kFileWritten,
  kFileSynced,
  kFileRenamed,
  // Of becoming the owner of a folder for checkpoints:
  kOwnerFileLocked,
  kOwnerRecorded,
  // Of a checkpoint:
  kCheckpointFolderMade,
  kCheckpointFilesWritten,
  kCheckpointManifestWritten,
  kCheckpointRenamed,
  kCheckpointSynced,
  kCheckpointSetAside,  // an old one, which is to be removed
  kCheckpointsRemoved,
  // Of a launcher's part of a round:
  kTicketDrawn,
  kFirstBeatGiven,
  kNodeDescribed,
  kReportWritten,
  kLeaveWritten,
  // Of the part of the one that serves the store:
  kRoundPrepared,
  kDecisionPublished,
};

// The last one.
inline constexpr Failpoint kLastFailpoint = Failpoint::kDecisionPublished;

// Whether this build has them.
bool has_failpoints();

// From now on this process kills itself when it passes `point` for the `nth` time, from 1. Not thread-safe: before
// other threads pass any.
void kill_at(Failpoint point, int64_t nth = 1);

// Passes the point, on any thread.
void pass(Failpoint point);

}  // namespace narrowcast
