// Translates the user's request into one command per worker and the targets of its output. --redirects, --tee,
// --local_ranks_filter and --duplicate_*_filters have torchrun's syntax.
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

// A subset of a worker's two streams.
struct Streams {
  bool output = false;
  bool error = false;
};

// The chosen streams of each local rank.
class StreamChoices {
 public:
  // Parses one number for all workers, or "RANK:N,RANK:N" for some local ranks and none of the others. Numbers: 0 none,
  // 1 standard output, 2 standard error, 3 both. Throws c10::ValueError naming `flag` and `text` for anything else.
  static StreamChoices parse(const std::string& flag, const std::string& text);

  // Returns the chosen streams of the worker with that local rank.
  Streams of(int64_t local_rank) const;
  // Returns whether no stream is chosen.
  bool empty() const;
  // Returns the largest local rank that is named, -1 if none is.
  int64_t largest_rank() const { return by_rank_.empty() ? -1 : by_rank_.rbegin()->first; }

 private:
  Streams all_;
  std::map<int64_t, Streams> by_rank_;
};

// The targets of the workers' output.
struct OutputChoices {
  StreamChoices redirects = {};                  // written to files instead of being shown
  StreamChoices tee = {};                        // written to files and shown; takes precedence over redirects
  std::set<int64_t> shown_ranks = {};            // local ranks whose output is shown; empty: all
  std::vector<std::string> output_filters = {};  // teed lines with one of these texts also go to a common file
  std::vector<std::string> error_filters = {};   // the same for standard error
  std::filesystem::path run_folder = {};         // contains every worker_folder

  bool writes_files() const { return !redirects.empty() || !tee.empty(); }
};

// Parses local ranks like "0,2". Throws c10::ValueError naming `flag` and `text` for anything else.
std::set<int64_t> parse_local_ranks(const std::string& flag, const std::string& text);

// Parses a list of texts like "apple,orange". Two commas stand for a comma within a text. Throws c10::ValueError naming
// `flag` and `list` if a text is empty, because every line contains the empty text.
std::vector<std::string> parse_filters(const std::string& flag, const std::string& list);

// Throws c10::ValueError if a flag names a local rank that a node with `nproc` workers does not have.
void check_local_ranks(const OutputChoices& choices, int64_t nproc);

// The folder of a worker's files: "RUN/attempt_0/3".
std::filesystem::path worker_folder(const std::filesystem::path& run_folder, const std::string& attempt,
                                    const std::string& rank);

// The file by which workers learn that another launcher serves the store (base/network/store_file.h).
std::filesystem::path store_file(const std::filesystem::path& run_folder);

// Names of the files of its streams in that folder.
inline constexpr const char* kOutputLog = "stdout.log";
inline constexpr const char* kErrorLog = "stderr.log";
// Names of the files of filtered lines, in the folder of the attempt.
inline constexpr const char* kFilteredOutputLog = "filtered_stdout.log";
inline constexpr const char* kFilteredErrorLog = "filtered_stderr.log";

// Targets of a worker's streams.
struct WorkerTargets {
  StreamTarget output;
  StreamTarget error;
};

// Returns the targets of the worker with that local rank. Its files are in `folder`, the files of filtered lines in the
// parent folder.
WorkerTargets targets_for(const OutputChoices& choices, int64_t local_rank, const std::filesystem::path& folder);

// The simulated network of the job's workers (network/simulated_network.h).
struct WorkerNetworks {
  std::string text = {};             // a description like "1 Gbit/s"; empty: the network is not simulated
  std::string interface = {};        // name of the interface in each namespace
  std::vector<int> namespaces = {};  // by local rank: descriptor of the worker's namespace
};

// Options that all workers of this node share.
struct LaunchOptions {
  std::vector<std::string> command;    // the program's path, then its arguments; the same for every worker
  int64_t nproc_per_node = 1;          // workers on this node
  std::string role = {};               // the workers' role name
  std::string signals_to_handle = {};  // passed to the workers
  OutputChoices output = {};           // its run_folder also contains error files
  WorkerNetworks networks = {};
  std::string line_prefix = kDefaultLinePrefix;       // template of the prefix of each shown line
  std::string host = {};                              // this machine's name, for that template
  bool virtual_local_rank = false;                    // each worker sees one GPU, and LOCAL_RANK is 0
  bool in_place = false;                              // workers recover in place; passed to them
  std::vector<std::vector<int64_t>> processors = {};  // processors of each worker, by local rank; empty: any
};

// Throws c10::ValueError for filters of a stream that is not teed. With virtual_local_rank, also if
// CUDA_VISIBLE_DEVICES names fewer GPUs than there are workers; the message names the variable.
void check_workers(const LaunchOptions& options, const EnvironmentVariables& inherited);

// Returns one command for each worker of this node in a round, in rank order. The environment is `inherited` with
// torchrun's variables on top (table in docs/reference/launcher.md). With several workers OMP_NUM_THREADS is 1 unless
// the user set it.
//
// In a simulated network each worker enters its namespace. Variables make Gloo and NCCL use its interface, NCCL also
// between GPUs of this machine.
std::vector<WorkerCommand> plan_workers(const LaunchOptions& options, const Round& round,
                                        const EnvironmentVariables& inherited);

// Returns the command of the process that takes the place of `worker` in that round. Its rank is the one that the
// round's present nodes give it, and WorkerCommand::rank stays the worker's. `number` counts such processes
// from 1: it adds to the worker's TORCHELASTIC_RESTART_COUNT. The process has its own folder, "RUN/attempt_0.1/3".
WorkerCommand plan_replacement(const LaunchOptions& options, const Round& round, WorkerCommand worker, int64_t number);

// Estimates the number of files that a launcher has open while its workers run. These are its own files and, for each
// worker, two pipes, two output files if there are any, and a namespace in a simulated network. If it serves the store,
// there are also two connections for each of the job's `served_workers` workers, or four with recovery in place.
int64_t open_files_needed(const LaunchOptions& options, int64_t served_workers);

// Returns whether plan_workers sets OMP_NUM_THREADS, which the launcher then prints.
bool limits_threads(const LaunchOptions& options, const EnvironmentVariables& inherited);

}  // namespace narrowcast::launcher
