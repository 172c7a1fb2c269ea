// From what the user asked for to one command per worker, and where each worker's output goes: --redirects, --tee,
// --local_ranks_filter and --duplicate_*_filters in torchrun's syntax.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "trainer/launcher/job/line_prefix.h"
#include "trainer/launcher/posix/worker_runner.h"
#include "trainer/launcher/rendezvous/rendezvous.h"

namespace narrowcast::launcher {

// Some of a worker's two streams.
struct Streams {
  bool output = false;
  bool error = false;
};

// Streams of each local rank.
class StreamChoices {
 public:
  // "0" none, "1" standard output, "2" standard error, "3" both, the same for every worker; or "RANK:N,RANK:N" for some
  // local ranks and none of the others. Throws c10::ValueError naming `flag` and `text` for anything else.
  static StreamChoices parse(const std::string& flag, const std::string& text);

  // Returns the streams of the worker with that local rank.
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
  StreamChoices redirects = {};                  // into files instead of being shown
  StreamChoices tee = {};                        // into files as well as being shown; wins over redirects
  std::set<int64_t> shown_ranks = {};            // local ranks that are shown; empty: all
  std::vector<std::string> output_filters = {};  // teed lines that hold one of these go to one more file
  std::vector<std::string> error_filters = {};   // likewise, of standard error
  std::filesystem::path run_folder = {};         // holds every worker_folder

  bool writes_files() const { return !redirects.empty() || !tee.empty(); }
};

// Local ranks like "0,2". Throws c10::ValueError naming `flag` and `text` for anything else.
std::set<int64_t> parse_local_ranks(const std::string& flag, const std::string& text);

// The texts in a list like "apple,orange", in which two commas stand for one comma of a text. Throws c10::ValueError
// naming `flag` and `list` if one is empty, which every line holds.
std::vector<std::string> parse_filters(const std::string& flag, const std::string& list);

// Throws c10::ValueError if a flag names a local rank that a node with `nproc` workers does not have.
void check_local_ranks(const OutputChoices& choices, int64_t nproc);

// The folder of a worker's files: "RUN/attempt_0/3".
std::filesystem::path worker_folder(const std::filesystem::path& run_folder, const std::string& attempt,
                                    const std::string& rank);

// What the files of its streams are called there.
inline constexpr const char* kOutputLog = "stdout.log";
inline constexpr const char* kErrorLog = "stderr.log";
// What the files of filtered lines are called, in the folder of the attempt.
inline constexpr const char* kFilteredOutputLog = "filtered_stdout.log";
inline constexpr const char* kFilteredErrorLog = "filtered_stderr.log";

// Where a worker's streams go; files are in `folder`, that of the attempt beside it.
struct WorkerTargets {
  StreamTarget output;
  StreamTarget error;
};

// Says where the streams of the worker with that local rank go.
WorkerTargets targets_for(const OutputChoices& choices, int64_t local_rank, const std::filesystem::path& folder);

// The simulated network of the job's workers (network/simulated_network.h).
struct WorkerNetworks {
  std::string text = {};             // a description for workers, "1 Gbit/s"; empty: the network is not simulated
  std::string interface = {};        // what its interface is called in each namespace
  std::vector<int> namespaces = {};  // by local rank: the descriptor of the namespace that the worker enters
};

// What all workers of this node have in common.
struct LaunchOptions {
  std::vector<std::string> command;    // the program's path, then its arguments; the same for every worker
  int64_t nproc_per_node = 1;          // workers on this node
  std::string role = {};               // a name for what they do
  std::string signals_to_handle = {};  // as the workers are told
  OutputChoices output = {};           // its run_folder holds error files too
  WorkerNetworks networks = {};
  std::string line_prefix = kDefaultLinePrefix;       // template of what is before each line that is shown
  std::string host = {};                              // what this machine calls itself, for that template
  bool virtual_local_rank = false;                    // each worker sees one GPU, and LOCAL_RANK is 0
  std::vector<std::vector<int64_t>> processors = {};  // that each worker may use, by local rank; empty: any
};

// Throws c10::ValueError for filters of a stream that is not teed, and, with virtual_local_rank, naming
// CUDA_VISIBLE_DEVICES if it names fewer GPUs than there are workers.
void check_workers(const LaunchOptions& options, const EnvironmentVariables& inherited);

// One command for each worker of this node in a round, in rank order, with the environment that torchrun gives
// (docs/launcher.md has the table) on top of `inherited`. OMP_NUM_THREADS is set to 1 for several workers unless the
// user chose a number. In a simulated network each worker enters its namespace, and Gloo and NCCL are told to use its
// interface, NCCL also between GPUs of this machine.
std::vector<WorkerCommand> plan_workers(const LaunchOptions& options, const Round& round,
                                        const EnvironmentVariables& inherited);

// How many files a launcher has open while its workers run, about: its own, two pipes and two files of output for each
// worker, and two connections for each worker of the job, `served_workers`, if it serves the store.
int64_t open_files_needed(const LaunchOptions& options, int64_t served_workers);

// Whether plan_workers sets OMP_NUM_THREADS itself, which users are told.
bool limits_threads(const LaunchOptions& options, const EnvironmentVariables& inherited);

}  // namespace narrowcast::launcher
