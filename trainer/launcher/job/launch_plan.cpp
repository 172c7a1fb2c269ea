#include "trainer/launcher/job/launch_plan.h"

#include <absl/strings/ascii.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <optional>

#include "trainer/base/network/job_network.h"
#include "trainer/base/network/places.h"
#include "trainer/base/network/tcp_store.h"

namespace narrowcast::launcher {
namespace {

constexpr const char* kVisibleGpus = "CUDA_VISIBLE_DEVICES";
constexpr const char* kRestartCount = "TORCHELASTIC_RESTART_COUNT";

std::vector<std::string> split(const std::string& list) { return absl::StrSplit(list, ','); }

std::optional<Streams> streams_of(const std::string& digit) {
  int64_t bits = 0;
  if (!absl::SimpleAtoi(digit, &bits) || bits < 0 || bits > 3) {
    return std::nullopt;
  }
  return Streams{.output = (bits & 1) != 0, .error = (bits & 2) != 0};
}

std::optional<int64_t> local_rank_of(const std::string& text) {
  int64_t rank = 0;
  return absl::SimpleAtoi(text, &rank) && rank >= 0 ? std::optional<int64_t>(rank) : std::nullopt;
}

void check_rank(const std::string& flag, int64_t rank, int64_t nproc) {
  TORCH_CHECK_VALUE(rank < nproc, flag, " names local rank ", rank, ", but --nproc_per_node is ", nproc);
}

// The user's choices for one stream of one worker.
struct Wish {
  bool redirected = false;
  bool teed = false;
  bool shown_rank = true;
};

StreamTarget target(const Wish& wish, const std::filesystem::path& file, const LineFilter& filter) {
  return {.shown = wish.shown_rank && (wish.teed || !wish.redirected),
          .file = wish.redirected || wish.teed ? file : "",
          .filter = wish.teed && wish.shown_rank && !filter.texts.empty() ? filter : LineFilter()};
}

// Variables that are equal for all workers of this node.
EnvironmentVariables node_environment(const LaunchOptions& options, const Round& round) {
  return {
      {"LOCAL_WORLD_SIZE", std::to_string(options.nproc_per_node)},
      {"WORLD_SIZE", std::to_string(round.world_size)},
      {"GROUP_RANK", std::to_string(round.node_rank)},
      {"GROUP_WORLD_SIZE", std::to_string(round.nodes)},
      {"ROLE_NAME", options.role},
      {"ROLE_WORLD_SIZE", std::to_string(round.role_world_size)},
      {"MASTER_ADDR", round.master_addr},
      {"MASTER_PORT", std::to_string(round.master_port)},
      {kRestartCount, std::to_string(round.restart_count + round.changes)},
      {"TORCHELASTIC_MAX_RESTARTS", std::to_string(round.max_restarts)},
      {"TORCHELASTIC_RUN_ID", round.run_id},
      {"TORCHELASTIC_SIGNALS_TO_HANDLE", options.signals_to_handle},
      {"TORCHELASTIC_USE_AGENT_STORE", "True"},  // a launcher serves the store
  };
}

// Variables that make Gloo and NCCL use the simulated network.
EnvironmentVariables network_environment(const WorkerNetworks& networks) {
  if (networks.text.empty()) {
    return {};
  }
  return {{network::kSimulatedVariable, networks.text},
          {"GLOO_SOCKET_IFNAME", networks.interface},
          {"NCCL_SOCKET_IFNAME", networks.interface},
          {"NCCL_NET", "Socket"},
          {"NCCL_P2P_DISABLE", "1"},
          {"NCCL_SHM_DISABLE", "1"}};
}

std::string prefix_for(const LaunchOptions& options, int64_t rank, int64_t local_rank) {
  return expand_line_prefix("--log_line_prefix_template", options.line_prefix,
                            {.role_name = options.role,
                             .rank = std::to_string(rank),
                             .local_rank = std::to_string(local_rank),
                             .hostname = options.host});
}

// Returns the only GPU that the worker with that local rank sees: an entry of CUDA_VISIBLE_DEVICES if it is set, else
// the local rank's number.
std::string gpu_of(int64_t local_rank, const EnvironmentVariables& environment) {
  const auto visible = environment.find(kVisibleGpus);
  if (visible == environment.end()) {
    return std::to_string(local_rank);
  }
  const std::vector<std::string> gpus = split(visible->second);
  TORCH_CHECK_VALUE(local_rank < std::ssize(gpus), "--virtual_local_rank: local rank ", local_rank, " has no GPU in ",
                    kVisibleGpus, "=", visible->second);
  return std::string(absl::StripAsciiWhitespace(gpus[static_cast<size_t>(local_rank)]));
}

// Throws if there are filters but no worker's stream is both shown and written to a file.
void check_filter(const char* flag, const LaunchOptions& options, const std::vector<std::string>& texts,
                  StreamTarget WorkerTargets::*stream) {
  bool is_used = texts.empty();
  for (int64_t local_rank = 0; local_rank < options.nproc_per_node && !is_used; ++local_rank) {
    is_used = !(targets_for(options.output, local_rank, {}).*stream).filter.texts.empty();
  }
  TORCH_CHECK_VALUE(is_used, flag, " needs --tee for this stream of a local rank that is shown");
}

// Sets the files of a worker in the folder of that attempt.
void set_files(const LaunchOptions& options, const std::string& attempt, int64_t rank, WorkerCommand& worker) {
  const std::filesystem::path folder = worker_folder(options.output.run_folder, attempt, std::to_string(rank));
  const WorkerTargets targets = targets_for(options.output, worker.local_rank, folder);
  worker.error_file = folder / "error.json";
  worker.environment["TORCHELASTIC_ERROR_FILE"] = worker.error_file;
  worker.output = targets.output;
  worker.error = targets.error;
}

// Sets the worker's place in the job.
void set_rank(const LaunchOptions& options, const Round& round, WorkerCommand& worker) {
  const int64_t rank = round.first_rank + worker.local_rank;
  worker.prefix = prefix_for(options, rank, worker.local_rank);
  worker.environment["RANK"] = std::to_string(rank);
  worker.environment["ROLE_RANK"] = std::to_string(round.role_first_rank + worker.local_rank);
}

// Adds the parts that differ between the workers of this node.
void add_own_part(const LaunchOptions& options, const Round& round, WorkerCommand& worker) {
  set_files(options, std::to_string(round.restart_count), worker.rank, worker);
  set_rank(options, round, worker);
  if (!options.processors.empty()) {
    worker.processors = options.processors.at(static_cast<size_t>(worker.local_rank));
  }
  if (options.in_place && round.node > 0) {
    worker.environment[rendezvous::kNodeVariable] = absl::StrCat(round.node, "/", worker.local_rank);
    worker.environment[rendezvous::kStoreFileVariable] = store_file(options.output.run_folder);
  }
  worker.environment["LOCAL_RANK"] = std::to_string(options.virtual_local_rank ? 0 : worker.local_rank);
  if (options.virtual_local_rank) {
    worker.environment[kVisibleGpus] = gpu_of(worker.local_rank, worker.environment);
  }
}

}  // namespace

StreamChoices StreamChoices::parse(const std::string& flag, const std::string& text) {
  StreamChoices choices;
  if (const auto all = streams_of(text)) {
    choices.all_ = *all;
    return choices;
  }
  for (const std::string& entry : split(text)) {
    const std::vector<std::string> parts = absl::StrSplit(entry, ':');
    const auto rank = local_rank_of(parts.front());
    const auto streams = streams_of(parts.back());
    TORCH_CHECK_VALUE(parts.size() == 2 && rank && streams, flag, "=", text,
                      ": must be 0 (none), 1 (standard output), 2 (standard error) or 3 (both), or such a number for "
                      "each local rank, like 0:3,1:2");
    TORCH_CHECK_VALUE(choices.by_rank_.emplace(*rank, *streams).second, flag, "=", text, ": names local rank ", *rank,
                      " twice");
  }
  return choices;
}

Streams StreamChoices::of(int64_t local_rank) const {
  const auto found = by_rank_.find(local_rank);
  return found == by_rank_.end() ? all_ : found->second;
}

bool StreamChoices::empty() const {
  const auto none = [](const Streams& streams) { return !streams.output && !streams.error; };
  return none(all_) &&
         std::all_of(by_rank_.begin(), by_rank_.end(), [&](const auto& entry) { return none(entry.second); });
}

std::set<int64_t> parse_local_ranks(const std::string& flag, const std::string& text) {
  std::set<int64_t> ranks;
  for (const std::string& entry : text.empty() ? std::vector<std::string>() : split(text)) {
    const auto rank = local_rank_of(entry);
    TORCH_CHECK_VALUE(rank.has_value(), flag, "=", text, ": must be local ranks like 0,2");
    ranks.insert(*rank);
  }
  return ranks;
}

std::vector<std::string> parse_filters(const std::string& flag, const std::string& list) {
  std::vector<std::string> texts = {""};
  for (size_t at = 0; at < list.size(); ++at) {
    const bool is_comma = list[at] == ',';
    const bool is_escaped = is_comma && list.compare(at, 2, ",,") == 0;
    at += is_escaped ? 1 : 0;
    if (is_comma && !is_escaped) {
      texts.emplace_back();
    } else {
      texts.back() += list[at];
    }
  }
  const bool is_any_empty = std::ranges::any_of(texts, [](const std::string& text) { return text.empty(); });
  TORCH_CHECK_VALUE(!is_any_empty, flag, "=", list, ": contains an empty text, which every line matches");
  return texts;
}

void check_local_ranks(const OutputChoices& choices, int64_t nproc) {
  check_rank("--redirects", choices.redirects.largest_rank(), nproc);
  check_rank("--tee", choices.tee.largest_rank(), nproc);
  check_rank("--local_ranks_filter", choices.shown_ranks.empty() ? -1 : *choices.shown_ranks.rbegin(), nproc);
}

std::filesystem::path store_file(const std::filesystem::path& run_folder) { return run_folder / "store"; }

std::filesystem::path worker_folder(const std::filesystem::path& run_folder, const std::string& attempt,
                                    const std::string& rank) {
  return run_folder / ("attempt_" + attempt) / rank;
}

WorkerTargets targets_for(const OutputChoices& choices, int64_t local_rank, const std::filesystem::path& folder) {
  const Streams redirected = choices.redirects.of(local_rank);
  const Streams teed = choices.tee.of(local_rank);
  const bool shown = choices.shown_ranks.empty() || choices.shown_ranks.contains(local_rank);
  const std::filesystem::path attempt = folder.parent_path();
  return {.output = target({.redirected = redirected.output, .teed = teed.output, .shown_rank = shown},
                           folder / kOutputLog, {attempt / kFilteredOutputLog, choices.output_filters}),
          .error = target({.redirected = redirected.error, .teed = teed.error, .shown_rank = shown}, folder / kErrorLog,
                          {attempt / kFilteredErrorLog, choices.error_filters})};
}

bool limits_threads(const LaunchOptions& options, const EnvironmentVariables& inherited) {
  return options.nproc_per_node > 1 && !SessionEnv::from_variables(inherited).omp_num_threads_set;
}

int64_t open_files_needed(const LaunchOptions& options, int64_t served_workers) {
  constexpr int64_t kOwn = 32;
  const int64_t for_output = options.output.writes_files() ? 4 : 2;
  const int64_t connections = options.in_place ? 4 : 2;
  return kOwn + for_output * options.nproc_per_node + std::ssize(options.networks.namespaces) +
         connections * served_workers;
}

void check_workers(const LaunchOptions& options, const EnvironmentVariables& inherited) {
  check_filter("--duplicate_stdout_filters", options, options.output.output_filters, &WorkerTargets::output);
  check_filter("--duplicate_stderr_filters", options, options.output.error_filters, &WorkerTargets::error);
  if (options.virtual_local_rank) {
    gpu_of(options.nproc_per_node - 1, inherited);
  }
}

std::vector<WorkerCommand> plan_workers(const LaunchOptions& options, const Round& round,
                                        const EnvironmentVariables& inherited) {
  EnvironmentVariables environment = node_environment(options, round);
  environment.merge(network_environment(options.networks));
  if (limits_threads(options, inherited)) {
    environment.emplace("OMP_NUM_THREADS", "1");
  }
  // Variables set so far take precedence over inherited ones.
  environment.insert(inherited.begin(), inherited.end());
  environment.emplace("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");  // unless the user set it
  environment.erase(rendezvous::kRecoveryVariable);
  environment.erase(rendezvous::kNodeVariable);
  environment.erase(rendezvous::kStoreFileVariable);
  if (options.in_place) {
    environment[rendezvous::kRecoveryVariable] = rendezvous::kRecoveryInPlace;
  }

  std::vector<WorkerCommand> workers;
  for (int64_t local_rank = 0; local_rank < options.nproc_per_node; ++local_rank) {
    WorkerCommand worker{.rank = round.first_rank + local_rank,
                         .local_rank = local_rank,
                         .arguments = options.command,
                         .environment = environment};
    if (!options.networks.namespaces.empty()) {
      worker.network = options.networks.namespaces.at(static_cast<size_t>(local_rank));
    }
    add_own_part(options, round, worker);
    workers.push_back(std::move(worker));
  }
  return workers;
}

WorkerCommand plan_replacement(const LaunchOptions& options, const Round& round, WorkerCommand worker, int64_t number) {
  for (const auto& [name, value] : node_environment(options, round)) {
    worker.environment[name] = value;
  }
  set_rank(options, round, worker);
  set_files(options, std::to_string(round.restart_count) + "." + std::to_string(number),
            round.first_rank + worker.local_rank, worker);
  worker.environment[kRestartCount] = std::to_string(round.restart_count + number);
  return worker;
}

}  // namespace narrowcast::launcher
