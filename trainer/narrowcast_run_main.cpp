// narrowcast-run: starts the ranks of a job on this machine, together with its like on others. docs/launcher.md tells
// users, and explains the flags at length.
#include <absl/flags/flag.h>
#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>
#include <c10/util/Logging.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include <narrowcast/worker_env.h>
#include "trainer/base/addresses.h"
#include "trainer/base/files/text.h"
#include "trainer/base/program/command_line.h"
#include "trainer/base/program/failure.h"
#include "trainer/base/program/job_secret.h"
#include "trainer/launcher/launch.h"
#include "trainer/launcher/launch_plan.h"

namespace launcher = narrowcast::launcher;
namespace program = narrowcast::program;

namespace {

const launcher::LaunchRequest kDefaults;
const launcher::RendezvousOptions& kRendezvous = kDefaults.group.options;

constexpr int64_t kStaticPort = 29500;  // torchrun's
constexpr int64_t kElasticPort = 29400;

double in_seconds(std::chrono::milliseconds time) { return std::chrono::duration<double>(time).count(); }

}  // namespace

ABSL_FLAG(std::string, nproc_per_node, kDefaults.nproc_per_node,
          "How many workers to start: a number, cpu (one for each CPU this process may use), gpu (one for each GPU) or "
          "auto (gpu if there is one, else cpu).");
ABSL_FLAG(std::string, role, kDefaults.role, "A name for what the workers do; they find it in ROLE_NAME.");
ABSL_FLAG(int32_t, max_restarts, static_cast<int32_t>(kDefaults.group.max_restarts),
          "How often all workers are started again after one has failed.");
ABSL_FLAG(double, monitor_interval, in_seconds(kDefaults.monitor_interval),
          "Seconds between two looks at what the other nodes do. This node's own workers need none: their end is "
          "noticed at once.");
ABSL_FLAG(double, shutdown_timeout, in_seconds(kDefaults.shutdown_timeout),
          "Seconds from telling the workers to end until SIGKILL ends those that have not.");
ABSL_FLAG(std::string, signals_to_handle, kDefaults.signals_to_handle,
          "Signals that are passed on to the workers before the launcher ends. The others do what they always do.");

ABSL_FLAG(std::string, nnodes, "1", "How many nodes the job has: a number, or MIN:MAX with --rdzv_backend=c10d.");
ABSL_FLAG(int32_t, node_rank, static_cast<int32_t>(kDefaults.group.node_rank),
          "With --rdzv_backend=static: which of them this one is, from 0.");
ABSL_FLAG(bool, standalone, false,
          "The job is on this machine alone, and its store on a free port of 127.0.0.1. The same as giving none of the "
          "other flags of this group, which it excludes.");
ABSL_FLAG(
    std::string, isolate, "auto",
    "Whether a job on one node gets a network of its own, in which no other process of the machine reaches it: on, "
    "off, or auto, where that is possible, no address is given and the program is one of narrowcast's that names no "
    "interface.");
ABSL_FLAG(std::string, master_addr, kDefaults.group.endpoint.host,
          "The address of node 0, under which the others know it; there the job's store is served.");
ABSL_FLAG(int32_t, master_port, 0,
          absl::StrCat("The TCP port there. 0 is any free one, for one node; for several it is ", kStaticPort, "."));
ABSL_FLAG(std::string, rdzv_backend, kDefaults.group.backend,
          "How several nodes meet: static, each has its --node_rank; c10d, they come and go, and ranks are assigned.");
ABSL_FLAG(std::string, rdzv_endpoint, "",
          "HOST[:PORT] where they meet: with c10d the one of them that serves the store. Another way to write "
          "--master_addr and --master_port otherwise.");
ABSL_FLAG(std::string, rdzv_id, "",
          "A name for the job, the same on all nodes; workers find it in TORCHELASTIC_RUN_ID. Else one is made up.");
ABSL_FLAG(std::string, rdzv_conf, "",
          absl::StrCat("KEY=VALUE,... for several nodes, times in seconds: join_timeout=",
                       in_seconds(kRendezvous.join_timeout),
                       ", last_call_timeout=", in_seconds(kRendezvous.last_call_timeout),
                       ", keep_alive_interval=", in_seconds(kRendezvous.keep_alive_interval),
                       ", keep_alive_max_attempt=", kRendezvous.keep_alive_max_attempt,
                       ", heartbeat_timeout=", in_seconds(kRendezvous.heartbeat_timeout),
                       ", read_timeout=", in_seconds(kRendezvous.read_timeout),
                       ", close_timeout=", in_seconds(kRendezvous.close_timeout), ", is_host=BOOL."));
ABSL_FLAG(
    std::string, secret_file, "",
    "A file with a secret of 16 bytes or more that all launchers of the job have, and nobody else: entries of the "
    "launchers' store that do not prove to be theirs are ignored, and narrowcast-train's ranks prove to each other "
    "that they know it. Default: what NARROWCAST_SECRET_FILE names.");
ABSL_FLAG(std::string, local_addr, "",
          "For several nodes: the address or name of this one, for messages, and to listen at where it serves the "
          "store. Default: the host's name, and the address under which the others know it.");

ABSL_FLAG(bool, prefix, kDefaults.prefix,
          "Show the workers' output line by line, each line after its rank: \"[1]: text\". With --noprefix the workers "
          "write to the launcher's streams themselves.");
ABSL_FLAG(std::string, log_dir, "",
          absl::StrCat("A folder for output files: ",
                       (launcher::worker_folder("DIR/RUN", "N", "RANK") / launcher::kOutputLog).string(), " and ",
                       launcher::kErrorLog,
                       ". Without --redirects and --tee all output goes there instead of being shown."));
ABSL_FLAG(std::string, redirects, "",
          "Which output goes to files instead of being shown: 0 none, 1 standard output, 2 standard error, 3 both, or "
          "a list by local rank such as 0:3,1:2. Default: 3 with --log_dir, else 0.");
ABSL_FLAG(std::string, tee, kDefaults.tee, "Which output goes to files and is shown too, written like --redirects.");
ABSL_FLAG(std::string, local_ranks_filter, "", "Show the output of these local ranks alone, e.g. 0,2.");

ABSL_FLAG(bool, no_python, true, "The program is started as it is. That is always so.");
ABSL_FLAG(bool, module, false, "Refused: write `python3 -m MODULE` as the program.");
ABSL_FLAG(std::string, start_method, "", "Refused: workers are programs of their own; nothing is forked or spawned.");

namespace {

using launcher::GroupRequest;
using narrowcast::network::kLargestPort;

constexpr size_t kLongestName = 255;

// Bytes of a line that the launcher says: more than one of a failed worker's last lines.
constexpr size_t kLongestLine = 16384;

void check_excluded(const program::CommandLine& line, const std::string& flag, const std::vector<std::string>& others) {
  for (const std::string& other : others) {
    TORCH_CHECK_VALUE(!line.given(flag) || !line.given(other), "--", flag, " and --", other,
                      " exclude each other: both say where the nodes meet");
  }
}

void refuse_for(const program::CommandLine& line, const std::vector<std::string>& flags, const std::string& reason) {
  for (const std::string& flag : flags) {
    TORCH_CHECK_VALUE(!line.given(flag), "--", flag, " has no effect with ", reason);
  }
}

void check_one_node(const program::CommandLine& line) {
  refuse_for(line, {"rdzv_conf", "local_addr"}, "one node");
  TORCH_CHECK_VALUE(!line.given("rdzv_endpoint") || !line.given("standalone"),
                    "--standalone chooses address and port: give it, or --rdzv_endpoint");
  TORCH_CHECK_VALUE(!absl::GetFlag(FLAGS_standalone) || !(line.given("master_addr") || line.given("master_port")),
                    "--standalone chooses address and port: give it, or --master_addr and --master_port");
}

void check_several_nodes(const program::CommandLine& line, const GroupRequest& request) {
  TORCH_CHECK_VALUE(!absl::GetFlag(FLAGS_standalone),
                    "--standalone means one node, but --nnodes=", absl::GetFlag(FLAGS_nnodes));
  if (request.backend == launcher::kElasticBackend) {
    refuse_for(line, {"node_rank", "master_addr", "master_port"}, "--rdzv_backend=c10d; it wants --rdzv_endpoint");
    TORCH_CHECK_VALUE(line.given("rdzv_endpoint"), "--rdzv_backend=c10d with --nnodes=", absl::GetFlag(FLAGS_nnodes),
                      " needs --rdzv_endpoint=HOST:PORT, the same on all nodes");
    return;
  }
  TORCH_CHECK_VALUE(request.nodes.least == request.nodes.most, "--nnodes=", absl::GetFlag(FLAGS_nnodes),
                    ": a changing number of nodes needs --rdzv_backend=c10d");
  TORCH_CHECK_VALUE(line.given("master_addr") || line.given("rdzv_endpoint"), "--nnodes=", absl::GetFlag(FLAGS_nnodes),
                    " needs --master_addr, the address under which the other nodes know node 0");
}

// The port that is meant if none is written.
int64_t default_port(const GroupRequest& request) {
  if (!request.nodes.several()) {
    return 0;
  }
  return request.backend == launcher::kElasticBackend ? kElasticPort : kStaticPort;
}

void read_endpoint(const program::CommandLine& line, GroupRequest& request) {
  if (line.given("rdzv_endpoint")) {
    request.endpoint = launcher::parse_endpoint(absl::GetFlag(FLAGS_rdzv_endpoint), default_port(request));
    request.endpoint_flags = {.address = "--rdzv_endpoint", .port = "--rdzv_endpoint"};
  } else {
    const int64_t port = absl::GetFlag(FLAGS_master_port);
    request.endpoint = {.host = absl::GetFlag(FLAGS_master_addr), .port = port == 0 ? default_port(request) : port};
  }
  TORCH_CHECK_VALUE(!request.nodes.several() || (request.endpoint.port >= 1 && request.endpoint.port <= kLargestPort),
                    request.endpoint_flags.port, ": port ", request.endpoint.port, " must be from 1 to ", kLargestPort,
                    " for several nodes");
}

// What the flags about nodes say.
GroupRequest read_group_request(const program::CommandLine& line) {
  GroupRequest request;
  request.nodes = launcher::parse_nnodes(absl::GetFlag(FLAGS_nnodes));
  request.backend = absl::GetFlag(FLAGS_rdzv_backend);
  TORCH_CHECK_VALUE(request.backend == launcher::kStaticBackend || request.backend == launcher::kElasticBackend,
                    "--rdzv_backend=", request.backend, ": must be ", launcher::kStaticBackend, " or ",
                    launcher::kElasticBackend);
  check_excluded(line, "rdzv_endpoint", {"master_addr", "master_port"});
  request.node_rank = absl::GetFlag(FLAGS_node_rank);
  TORCH_CHECK_VALUE(request.node_rank >= 0 && request.node_rank < request.nodes.most, "--node_rank=", request.node_rank,
                    ": must be from 0 to ", request.nodes.most - 1, " with --nnodes=", absl::GetFlag(FLAGS_nnodes));
  request.nodes.several() ? check_several_nodes(line, request) : check_one_node(line);
  read_endpoint(line, request);
  request.local_addr = absl::GetFlag(FLAGS_local_addr);
  request.rdzv_id = absl::GetFlag(FLAGS_rdzv_id);
  request.options = launcher::parse_rendezvous_options(absl::GetFlag(FLAGS_rdzv_conf), request.backend);
  return request;
}

std::chrono::milliseconds seconds(const std::string& flag, double value, double least) {
  TORCH_CHECK_VALUE(value >= least && value <= launcher::kLongestSeconds, "--", flag, "=", value, ": must be from ",
                    least, " to ", launcher::kLongestSeconds, " s");
  return std::chrono::milliseconds(std::llround(value * 1000));
}

// Names are in many messages of the launchers to each other, whose size is bounded.
void check_name(const std::string& flag, const std::string& name) {
  TORCH_CHECK_VALUE(name.size() <= kLongestName, "--", flag, ": has ", name.size(), " bytes, but may have ",
                    kLongestName, " at most");
}

void refuse_python(const program::CommandLine& line) {
  TORCH_CHECK_VALUE(absl::GetFlag(FLAGS_no_python),
                    "--nono_python: programs are always started as they are; write `python3 SCRIPT` as the program");
  TORCH_CHECK_VALUE(!line.given("module"),
                    "--module: programs are started as they are; write `python3 -m MODULE` as the program");
  TORCH_CHECK_VALUE(!line.given("start_method"), "--start_method=", absl::GetFlag(FLAGS_start_method),
                    ": workers are programs of their own, started as such; there is nothing to choose");
}

// Workers find it under the same name, from whichever folder they look.
void read_secret(const program::CommandLine& line, launcher::LaunchRequest& wanted) {
  const narrowcast::EnvironmentVariables environment = narrowcast::process_environment();
  if (line.given("secret_file")) {
    wanted.group.secret = program::JobSecret::read("--secret_file", absl::GetFlag(FLAGS_secret_file));
    wanted.secret_file = std::filesystem::absolute(absl::GetFlag(FLAGS_secret_file));
  } else {
    wanted.group.secret = program::JobSecret::of_environment(environment);
  }
}

void read_output(const program::CommandLine& line, launcher::LaunchRequest& wanted) {
  wanted.log_dir = absl::GetFlag(FLAGS_log_dir);
  TORCH_CHECK_VALUE(!line.given("log_dir") || !wanted.log_dir.empty(), "--log_dir= names no folder");
  const bool chosen = line.given("redirects") || line.given("tee");
  const bool all_to_files = line.given("log_dir") && !chosen;
  TORCH_CHECK_VALUE(!all_to_files || !line.given("prefix"),
                    "--prefix and --log_dir exclude each other: output in files is never prefixed");
  TORCH_CHECK_VALUE(!all_to_files || !line.given("local_ranks_filter"),
                    "--local_ranks_filter chooses what is shown, but --log_dir alone shows nothing; give --tee too");
  wanted.redirects = line.given("redirects") ? absl::GetFlag(FLAGS_redirects) : all_to_files ? "3" : "0";
  wanted.tee = absl::GetFlag(FLAGS_tee);
  wanted.local_ranks_filter = absl::GetFlag(FLAGS_local_ranks_filter);
  TORCH_CHECK_VALUE(!line.given("local_ranks_filter") || !wanted.local_ranks_filter.empty(),
                    "--local_ranks_filter= names no rank");
  wanted.prefix = absl::GetFlag(FLAGS_prefix);
}

program::Description description() {
  return {
      .name = "narrowcast-run",
      .version = NARROWCAST_VERSION,
      .summary =
          "starts the ranks of a job on this machine, shows what they write, and ends them all, or starts them all "
          "again, when one fails; on several machines together with its like there. Arguments after the program's name "
          "are the program's own.",
      .usage = "narrowcast-run [flags] PROGRAM [arguments]",
      .groups = {{"Workers",
                  {"nproc_per_node", "role", "max_restarts", "monitor_interval", "shutdown_timeout",
                   "signals_to_handle"}},
                 {"Nodes",
                  {"nnodes", "node_rank", "standalone", "isolate", "master_addr", "master_port", "rdzv_backend",
                   "rdzv_endpoint", "rdzv_id", "rdzv_conf", "local_addr", "secret_file"}},
                 {"Output", {"prefix", "log_dir", "redirects", "tee", "local_ranks_filter"}},
                 {"For those who know torchrun", {"no_python", "module", "start_method"}}},
      .examples = {{"two ranks of the trainer",
                    "narrowcast-run --nproc_per_node=2 narrowcast-train --model=char_gpt --hook=int8"},
                   {"a rank for each GPU, their output in files",
                    "narrowcast-run --nproc-per-node=gpu --log_dir=logs ./my_trainer"},
                   {"the first of two machines; the other has --node_rank=1",
                    "narrowcast-run --nnodes=2 --node_rank=0 --master_addr=10.0.0.1 --nproc_per_node=8 ./my_trainer"},
                   {"two to four machines that may come and go; the same on each",
                    "narrowcast-run --nnodes=2:4 --rdzv_backend=c10d --rdzv_endpoint=10.0.0.1:29400 --max_restarts=3 "
                    "./my_trainer"}},
      .exit_codes = {{program::kSuccess, "every rank succeeded"},
                     {program::kWrongUse,
                      "wrong use: a flag, a program that cannot be executed, a port in use; no rank did anything"},
                     {program::kPeerFailed, "another node was lost, or could not be reached"},
                     {program::kInternalError, "an internal error: please report it"}},
      .exit_note =
          "Otherwise that of the rank that failed first: its own, or 128 + N if signal N ended it. Also 128 + N if "
          "signal N stopped the job.",
      .positionals = program::Positionals::kEndTheFlags};
}

// The job that the command line asks for. Throws c10::ValueError for a flag that cannot take effect, alone or with the
// others, and for a wrong value of one that says which nodes take part; other values are checked where they are used.
launcher::LaunchRequest read_launch_request(const program::CommandLine& line) {
  launcher::LaunchRequest wanted;
  TORCH_CHECK_VALUE(!line.rest().empty(), "no program to start: narrowcast-run [flags] PROGRAM [arguments]");
  refuse_python(line);
  wanted.group = read_group_request(line);
  read_secret(line, wanted);
  wanted.isolation = launcher::parse_isolation("--isolate", absl::GetFlag(FLAGS_isolate));
  read_output(line, wanted);
  wanted.command = line.rest();
  wanted.nproc_per_node = absl::GetFlag(FLAGS_nproc_per_node);
  wanted.role = absl::GetFlag(FLAGS_role);
  check_name("role", wanted.role);
  check_name("local_addr", wanted.group.local_addr);
  check_name("rdzv_id", wanted.group.rdzv_id);
  wanted.group.max_restarts = absl::GetFlag(FLAGS_max_restarts);
  TORCH_CHECK_VALUE(wanted.group.max_restarts >= 0, "--max_restarts=", wanted.group.max_restarts,
                    ": must be 0 or more");
  wanted.signals_to_handle = absl::GetFlag(FLAGS_signals_to_handle);
  wanted.monitor_interval = seconds("monitor_interval", absl::GetFlag(FLAGS_monitor_interval), 0.01);
  wanted.shutdown_timeout = seconds("shutdown_timeout", absl::GetFlag(FLAGS_shutdown_timeout), 0);
  return wanted;
}

}  // namespace

int main(int argc, char** argv) {
  FLAGS_caffe2_log_level = c10::GLOG_FATAL;  // LibTorch reports what it then throws; one line is enough.
  const program::Description about = description();
  return program::run_main(about, argc, argv, [&](const program::CommandLine& line) {
    return launcher::launch(read_launch_request(line), narrowcast::process_environment(), [&](const std::string& text) {
      std::cerr << about.name + ": " + narrowcast::printable(text, kLongestLine) + "\n" << std::flush;
    });
  });
}
