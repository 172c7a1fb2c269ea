#include "trainer/launcher/failure/failure_record.h"

#include "trainer/program/exit_code.h"

namespace narrowcast::launcher {

int GroupEnd::exit_code() const {
  switch (cause) {
    case Cause::kFailed:
      return failure->ending.code();
    case Cause::kInterrupted:
      return 128 + signal;
    case Cause::kMembership:
    case Cause::kAborted:
      return code;
    case Cause::kSucceeded:
      break;
  }
  return program::kSuccess;
}

}  // namespace narrowcast::launcher
