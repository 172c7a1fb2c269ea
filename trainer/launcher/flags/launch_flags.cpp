#include "trainer/launcher/flags/launch_flags.h"

#include <absl/flags/flag.h>
#include <absl/strings/str_cat.h>
#include <absl/time/time.h>
#include <c10/util/Exception.h>

#include <chrono>
#include <cmath>
#include <string>
#include <vector>

#include "trainer/base/program/command_line.h"
#include "trainer/base/program/failure.h"
#include "trainer/launcher/flags/node_flags.h"
#include "trainer/launcher/flags/output_flags.h"
#include "trainer/launcher/group/group.h"
#include "trainer/launcher/job/launch_plan.h"
#include "trainer/launcher/rendezvous/rendezvous_options.h"

namespace {

namespace launcher = narrowcast::launcher;

const launcher::LaunchRequest kDefaults;

}  // namespace

ABSL_FLAG(std::string, nproc_per_node, kDefaults.nproc_per_node,
          "How many workers to start: a number, cpu (one for each CPU this process may use), gpu (one for each GPU) or "
          "auto (gpu if there is one, else cpu).");
ABSL_FLAG(std::string, role, kDefaults.role, "A name for the role of the workers, passed to them in ROLE_NAME.");
ABSL_FLAG(int32_t, max_restarts, static_cast<int32_t>(kDefaults.group.max_restarts),
          "How many times all workers may be started again after one has failed. With --recovery=in_place: how many "
          "processes of this node may be replaced within an hour.");
ABSL_FLAG(std::string, recovery, "auto",
          "What follows the failure of a rank, within --max_restarts: restart (all workers are started again) or "
          "in_place (a new process takes its place, and the other workers live on). auto: in_place for "
          "narrowcast-train, else restart.");
ABSL_FLAG(double, monitor_interval, absl::ToDoubleSeconds(absl::FromChrono(kDefaults.monitor_interval)),
          "Seconds between two checks of the other nodes. The end of this node's workers is noticed at once.");
ABSL_FLAG(double, shutdown_timeout, absl::ToDoubleSeconds(absl::FromChrono(kDefaults.shutdown_timeout)),
          absl::StrCat("Seconds from SIGTERM to SIGKILL when the workers are ended. After a signal that is passed on, "
                       "workers have time to write a checkpoint: ",
                       absl::ToDoubleSeconds(absl::FromChrono(kDefaults.signal_timeout)),
                       " s, unless this flag is given."));
ABSL_FLAG(std::string, signals_to_handle, kDefaults.signals_to_handle,
          "Signals that are passed on to the workers before the launcher ends. Other signals have their usual effect.");
ABSL_FLAG(bool, virtual_local_rank, kDefaults.virtual_local_rank,
          "LOCAL_RANK is 0 for every worker, and CUDA_VISIBLE_DEVICES names only its GPU.");
ABSL_FLAG(std::string, numa_binding, "",
          "The processors that a worker may use: node (all of the NUMA node near its GPU), socket (all of that node's "
          "socket), exclusive (a part of the node's cores, for this worker alone) or core-complex (processors of the "
          "node that share a cache). Workers without a GPU are divided among the nodes.");

ABSL_FLAG(bool, no_python, true, "No effect: the program is always started as it is.");
ABSL_FLAG(bool, module, false, "Refused: write `python3 -m MODULE` as the program.");
ABSL_FLAG(std::string, start_method, "", "Refused: workers are separate programs; nothing is forked or spawned.");

namespace narrowcast::launcher {
namespace {

std::chrono::milliseconds seconds(const std::string& flag, double value, double least) {
  TORCH_CHECK_VALUE(value >= least && value <= kLongestSeconds, "--", flag, "=", value, ": must be from ", least,
                    " to ", kLongestSeconds, " s");
  return std::chrono::milliseconds(std::llround(value * 1000));
}

// Names are part of many messages between launchers, whose size is bounded.
void check_name(const std::string& flag, const std::string& name) {
  TORCH_CHECK_VALUE(std::ssize(name) <= kLongestName, "--", flag, ": has ", name.size(), " bytes, but may have ",
                    kLongestName, " at most");
}

void refuse_python(const program::CommandLine& line) {
  TORCH_CHECK_VALUE(absl::GetFlag(FLAGS_no_python),
                    "--nono_python: programs are always started as they are; write `python3 SCRIPT` as the program");
  TORCH_CHECK_VALUE(!line.given("module"),
                    "--module: programs are started as they are; write `python3 -m MODULE` as the program");
  TORCH_CHECK_VALUE(!line.given("start_method"), "--start_method=", absl::GetFlag(FLAGS_start_method),
                    ": has no effect, because workers are separate programs");
}

}  // namespace

program::Description launch_description() {
  return {
      .name = "narrowcast-run",
      .version = NARROWCAST_VERSION,
      .summary =
          "starts the ranks of a job on this machine and shows their output. When one rank fails, it ends all of them, "
          "starts all of them again, or starts that rank alone again. For a job on several machines, start it on each. "
          "Arguments after the program's "
          "name are passed to the program.",
      .usage = "narrowcast-run [flags] PROGRAM [arguments]",
      .groups = {{"Workers",
                  {"nproc_per_node", "role", "max_restarts", "recovery", "monitor_interval", "shutdown_timeout",
                   "signals_to_handle", "virtual_local_rank", "numa_binding"}},
                 {"Nodes",
                  {"nnodes", "node_rank", "standalone", "isolate", "simulate_gbit", "simulate_us", "master_addr",
                   "master_port", "rdzv_backend", "rdzv_endpoint", "rdzv_id", "rdzv_conf", "local_addr",
                   "secret_file"}},
                 {"Output", output_flags()},
                 {"For users of torchrun", {"no_python", "module", "start_method"}}},
      .examples =
          {{"two ranks of the trainer", "narrowcast-run --nproc_per_node=2 narrowcast-train --model=char_gpt"},
           {"the same as on two machines that a network of 1 Gbit/s connects",
            "narrowcast-run --nproc_per_node=2 --simulate_gbit=1 narrowcast-train --model=char_gpt --hook=int8"},
           {"a rank for each GPU, their output in files",
            "narrowcast-run --nproc-per-node=gpu --log_dir=logs ./my_trainer"},
           {"the first of two machines; the other has --node_rank=1",
            "narrowcast-run --nnodes=2 --node_rank=0 --master_addr=10.0.0.1 --nproc_per_node=8 ./my_trainer"},
           {"two to four machines that may come and go; the same command on each",
            "narrowcast-run --nnodes=2:4 --rdzv_backend=c10d --rdzv_endpoint=10.0.0.1:29400 --max_restarts=3 "
            "./my_trainer"}},
      .exit_codes = {{program::kSuccess, "every rank succeeded"},
                     {program::kWrongUse,
                      "wrong use: a flag, a program that cannot be executed, a port in use; no rank did anything"},
                     {program::kPeerFailed, "another node was lost, or could not be reached"},
                     {program::kInternalError, "an internal error: please report it"}},
      .exit_note =
          "Otherwise the exit code of the rank that failed first, or 128 + N if signal N ended that rank. Also 128 + N "
          "if signal N stopped the job.",
      .positionals = program::Positionals::kEndTheFlags};
}

LaunchRequest read_launch_request(const program::CommandLine& line) {
  LaunchRequest wanted;
  TORCH_CHECK_VALUE(!line.rest().empty(), "no program to start: narrowcast-run [flags] PROGRAM [arguments]");
  refuse_python(line);
  read_node_flags(line, wanted);
  read_output_flags(line, wanted);
  wanted.command = line.rest();
  wanted.virtual_local_rank = absl::GetFlag(FLAGS_virtual_local_rank);
  if (line.given("numa_binding")) {
    wanted.numa_binding = parse_numa_binding("--numa_binding", absl::GetFlag(FLAGS_numa_binding));
  }
  wanted.nproc_per_node = absl::GetFlag(FLAGS_nproc_per_node);
  wanted.role = absl::GetFlag(FLAGS_role);
  check_name("role", wanted.role);
  check_name("local_addr", wanted.group.local_addr);
  check_name("rdzv_id", wanted.group.rdzv_id);
  wanted.group.max_restarts = absl::GetFlag(FLAGS_max_restarts);
  TORCH_CHECK_VALUE(wanted.group.max_restarts >= 0, "--max_restarts=", wanted.group.max_restarts,
                    ": must be 0 or more");
  wanted.recovery = parse_recovery("--recovery", absl::GetFlag(FLAGS_recovery));
  TORCH_CHECK_VALUE(wanted.recovery != Recovery::kInPlace || wanted.group.max_restarts > 0,
                    "--recovery=in_place: needs --max_restarts, how many processes may be replaced within an hour");
  wanted.signals_to_handle = absl::GetFlag(FLAGS_signals_to_handle);
  wanted.monitor_interval = seconds("monitor_interval", absl::GetFlag(FLAGS_monitor_interval), 0.01);
  wanted.shutdown_timeout = seconds("shutdown_timeout", absl::GetFlag(FLAGS_shutdown_timeout), 0);
  if (line.given("shutdown_timeout")) {
    wanted.signal_timeout = wanted.shutdown_timeout;
  }
  return wanted;
}

}  // namespace narrowcast::launcher
