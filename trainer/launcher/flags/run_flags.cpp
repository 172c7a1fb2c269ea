#include "trainer/launcher/flags/run_flags.h"

#include <absl/flags/flag.h>
#include <c10/util/Exception.h>

#include <cmath>

#include "trainer/launcher/flags/group_flags.h"

ABSL_FLAG(std::string, nproc_per_node, "1",
          "How many workers to start: a number, cpu (one for each CPU this process may use), gpu (one for each GPU) or "
          "auto (gpu if there is one, else cpu).");
ABSL_FLAG(std::string, role, "default", "A name for what the workers do; they find it in ROLE_NAME.");
ABSL_FLAG(int32_t, max_restarts, 0, "How often all workers are started again after one has failed.");
ABSL_FLAG(double, monitor_interval, 0.1,
          "Seconds between two looks at what the other nodes do. This node's own workers need none: their end is "
          "noticed at once.");
ABSL_FLAG(double, shutdown_timeout, 3.0,
          "Seconds from telling the workers to end until SIGKILL ends those that have not.");
ABSL_FLAG(std::string, signals_to_handle, "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
          "Signals that are passed on to the workers before the launcher ends. The others do what they always do.");

ABSL_FLAG(bool, prefix, true,
          "Show the workers' output line by line, each line after its rank: \"[1]: text\". With --noprefix the workers "
          "write to the launcher's streams themselves.");
ABSL_FLAG(std::string, log_dir, "",
          "A folder for output files: DIR/RUN/attempt_N/RANK/stdout.log and stderr.log. Without --redirects and --tee "
          "all output goes there instead of being shown.");
ABSL_FLAG(std::string, redirects, "",
          "Which output goes to files instead of being shown: 0 none, 1 standard output, 2 standard error, 3 both, or "
          "a list by local rank such as 0:3,1:2. Default: 3 with --log_dir, else 0.");
ABSL_FLAG(std::string, tee, "0", "Which output goes to files and is shown too, written like --redirects.");
ABSL_FLAG(std::string, local_ranks_filter, "", "Show the output of these local ranks alone, e.g. 0,2.");

ABSL_FLAG(bool, no_python, true, "The program is started as it is. That is always so.");
ABSL_FLAG(bool, module, false, "Refused: write `python3 -m MODULE` as the program.");
ABSL_FLAG(std::string, start_method, "", "Refused: workers are programs of their own; nothing is forked or spawned.");

namespace narrowcast {
namespace {

constexpr double kLongest = 86400;
constexpr size_t kLongestName = 255;

std::chrono::milliseconds seconds(const std::string& flag, double value, double least) {
  TORCH_CHECK_VALUE(value >= least && value <= kLongest, "--", flag, "=", value, ": must be from ", least, " to ",
                    kLongest, " s");
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

}  // namespace

launcher::LaunchRequest read_launch_request(const program::CommandLine& line) {
  launcher::LaunchRequest wanted;
  TORCH_CHECK_VALUE(!line.rest().empty(), "no program to start: narrowcast-run [flags] PROGRAM [arguments]");
  refuse_python(line);
  wanted.group = read_group_request(line);
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

}  // namespace narrowcast
