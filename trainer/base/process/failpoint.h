// Points between two visible steps at which a process can be made to end as if it was killed. Tests use them to check
// that nothing is lost at any of them. Only builds with NARROWCAST_FAILPOINTS end there; in others these functions do
// nothing.
#pragma once

#include <cstdint>

namespace narrowcast {

enum class Failpoint {
  // Replacing a whole file (files::AtomicFile):
  kFileWritten,
  kFileSynced,
  kFileRenamed,
  // Becoming the owner of a folder for checkpoints:
  kOwnerFileLocked,
  kOwnerRecorded,
  // Writing a checkpoint:
  kCheckpointFolderMade,
  kCheckpointFilesWritten,
  kCheckpointManifestWritten,
  kCheckpointRenamed,
  kCheckpointSynced,
  kCheckpointSetAside,  // an old checkpoint, which is to be removed
  kCheckpointsRemoved,
  // A launcher's part of a round:
  kTicketDrawn,
  kFirstBeatGiven,
  kNodeDescribed,
  kReportWritten,
  kLeaveWritten,
  // The coordinator's part of a round, which serves the store:
  kRoundPrepared,
  kDecisionPublished,
};

// The last one.
inline constexpr Failpoint kLastFailpoint = Failpoint::kDecisionPublished;

// Whether this build has failpoints.
bool has_failpoints();

// Makes this process kill itself when it passes `point` for the `nth` time, counted from 1. Not thread-safe: call it
// before other threads pass any point.
void kill_at(Failpoint point, int64_t nth = 1);

// Passes the point, on any thread.
void pass(Failpoint point);

}  // namespace narrowcast
