// A rank's work with the others, which it begins again each time another rank is lost.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>

#include <narrowcast/worker_env.h>

namespace narrowcast::recovery {

// One attempt to do the work in a group of all ranks.
struct Attempt {
  WorkerEnv env;  // this rank's place in the group
  // When the attempt before ended. Empty in the first attempt, also of a process that has replaced another one.
  std::optional<std::chrono::steady_clock::time_point> interrupted_at = {};
  bool has_joined = false;  // The work sets it: this rank is, or was, in a group with the others.
};

// How an attempt ends without an exception.
enum class AttemptEnd {
  kDone,     // the work is done
  kRegroup,  // all ranks have agreed to form a new group after the same step
};

// The work of one rank.
struct Work {
  // Joins the other ranks and works.
  std::function<AttemptEnd(Attempt& attempt)> attempt;
  // Called after a loss: the last step whose state this rank has. -1: none.
  std::function<int64_t()> step;
  // Called after a loss: whether to end nevertheless. Null: no.
  std::function<bool()> gives_up = {};
};

// Makes attempts until one is done: another one begins when a rank was lost after the ranks had joined, or to regroup.
// Throws what the last attempt throws: another error, a time-out, any error if the work gives up, or the last of
// kMostFruitless losses in a row with neither a step nor a minute in between.
inline constexpr int64_t kMostFruitless = 10;
void work_until_nothing_is_lost(const WorkerEnv& env, const Work& work);

}  // namespace narrowcast::recovery
