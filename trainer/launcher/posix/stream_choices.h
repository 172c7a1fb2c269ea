// Which of the workers' streams --redirects and --tee mean, and which workers
// --local_ranks_filter shows, in torchrun's syntax.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "trainer/launcher/workers/worker_runner.h"

namespace narrowcast::launcher {

// Some of a worker's two streams.
struct Streams {
  bool output = false;
  bool error = false;
};

// Streams of each local rank.
class StreamChoices {
 public:
  // "0" none, "1" standard output, "2" standard error, "3" both, the same for every
  // worker; or "RANK:N,RANK:N" for some local ranks and none of the others. Throws
  // c10::ValueError naming `flag` and `text` for anything else.
  static StreamChoices parse(const std::string& flag, const std::string& text);

  Streams of(int64_t local_rank) const;
  // Whether it is about no stream at all.
  bool empty() const;
  // The largest local rank that is named, -1 without one.
  int64_t largest_rank() const { return by_rank_.empty() ? -1 : by_rank_.rbegin()->first; }

 private:
  Streams all_;
  std::map<int64_t, Streams> by_rank_;
};

// What becomes of the workers' output.
struct OutputChoices {
  StreamChoices redirects = {};           // into files instead of being shown
  StreamChoices tee = {};                 // into files as well as being shown; wins over redirects
  std::set<int64_t> shown_ranks = {};     // local ranks that are shown; empty: all
  std::filesystem::path run_folder = {};  // holds attempt_N/RANK/stdout.log and stderr.log

  bool writes_files() const { return !redirects.empty() || !tee.empty(); }
};

// Local ranks like "0,2". Throws c10::ValueError naming `flag` and `text` for anything else.
std::set<int64_t> parse_local_ranks(const std::string& flag, const std::string& text);

// Throws c10::ValueError if a flag names a local rank that a node with `nproc` workers does not have.
void check_local_ranks(const OutputChoices& choices, int64_t nproc);

// Where a worker's streams go; files are in `folder`.
struct WorkerTargets {
  StreamTarget output;
  StreamTarget error;
};
WorkerTargets targets_for(const OutputChoices& choices, int64_t local_rank, const std::filesystem::path& folder);

}  // namespace narrowcast::launcher
