#include "trainer/train/flags/worker_flags.h"

#include <absl/flags/flag.h>
#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <optional>

#include <narrowcast/process_group.h>
#include "hooks/table/hook_table.h"

namespace hooks = narrowcast::hooks;
using narrowcast::with_hooks_of;

ABSL_FLAG(int64_t, rank, 0, "This process's rank, from 0; from the launcher if not given, as the next five.");
ABSL_FLAG(int64_t, world_size, 1, "Number of ranks.");
ABSL_FLAG(int64_t, local_rank, 0, "This process's number among those of its node.");
ABSL_FLAG(int64_t, local_world_size, 1, "Number of processes of its node.");
ABSL_FLAG(std::string, master_addr, "", "Address of rank 0's machine, where the job's store is.");
ABSL_FLAG(int64_t, master_port, 0, "TCP port of the store.");
ABSL_FLAG(
    std::string, interface, "",
    "Network interface to reach other processes by, e.g. eth0. If not given: GLOO_SOCKET_IFNAME, else loopback for "
    "a job on one node, else the one that reaches rank 0.");
ABSL_FLAG(int64_t, timeout_seconds,
          std::chrono::duration_cast<std::chrono::seconds>(narrowcast::ProcessGroupOptions{}.timeout).count(),
          "Limit, in seconds, for joining the other ranks and for every collective.");
ABSL_FLAG(int64_t, silence_seconds,
          std::chrono::duration_cast<std::chrono::seconds>(narrowcast::ProcessGroupOptions{}.silence).count(),
          "Seconds without a sign of its process after which a rank is lost and the job ends, at least 3; 0: only "
          "--timeout_seconds counts.");
ABSL_FLAG(int64_t, threads, 0,
          "Threads per rank; 0: OMP_NUM_THREADS, else the cores shared by the ranks of this node.");
ABSL_FLAG(
    std::string, device, "auto",
    "Where to compute: cpu, cuda (the GPU of the local rank), cuda:N (GPU N, on every rank), or auto: the GPUs of "
    "this node if there is one for each of its ranks, else the CPU.");
ABSL_FLAG(std::string, levels, std::string(to_string(hooks::WireOptions{}.levels)),
          with_hooks_of("levels",
                        "where ranks share a node: two lets them sum in its memory first, so that each byte crosses "
                        "the node's card once, one lets each rank exchange with every other, auto takes two where it "
                        "can."));
ABSL_FLAG(int64_t, node_size, 0,
          with_hooks_of("node_size",
                        "take so many consecutive ranks for a node, instead of finding out which share one; "
                        "with 1 every rank is one. 0: find out."));
ABSL_FLAG(double, link_gbit, 0,
          with_hooks_of("link_gbit",
                        "Gbit/s of a node's network card, which its ranks share. 0: measure it. Rates of "
                        "narrowcast-bench are shares of it, too."));
ABSL_FLAG(double, link_us, 0,
          with_hooks_of("link_us", "microseconds until a small message has arrived at another node. 0: measure them."));

namespace narrowcast {
namespace {

// The flag's value if it was given.
template <class Value>
std::optional<Value> given(const program::CommandLine& line, const std::string& name, const absl::Flag<Value>& flag) {
  return line.given(name) ? std::optional<Value>(absl::GetFlag(flag)) : std::nullopt;
}

// A launcher with a run id may start the job again with more processes, all by this command line.
void check_interface_is_used(const WorkerEnv& env, const std::string& interface) {
  TORCH_CHECK_VALUE(env.world_size > 1 || !env.run_id.empty(), "--interface=", interface,
                    ": has no effect on one process alone, which connects to no other");
}

}  // namespace

std::string with_hooks_that_take(hooks::OptionKind kind, const std::string& text) {
  return absl::StrCat("With ", hooks::hook_names_that_take(kind), ": ", text);
}

std::string with_hooks_of(const std::string& option, const std::string& text) {
  const std::vector<hooks::NamedOption> options = hooks::named_options({});
  const auto found = std::ranges::find(options, option, &hooks::NamedOption::name);
  TORCH_CHECK_VALUE(found != options.end(), "--", option, ": is no option of a hook");
  return with_hooks_that_take(found->kind, text);
}

void read_patience(const program::CommandLine& line, ProcessGroupOptions& options) {
  const int64_t timeout = absl::GetFlag(FLAGS_timeout_seconds);
  const int64_t silence = absl::GetFlag(FLAGS_silence_seconds);
  TORCH_CHECK_VALUE(silence == 0 || silence >= 3, "--silence_seconds=", silence, ": must be 0 or at least 3");
  TORCH_CHECK_VALUE(!line.given("silence_seconds") || silence <= timeout, "--silence_seconds=", silence,
                    ": has no effect with --timeout_seconds=", timeout);
  options.timeout = std::chrono::seconds(timeout);
  options.silence = std::chrono::seconds(silence);
}

const std::vector<std::string>& worker_flags() {
  static const std::vector<std::string> flags = {"rank",        "world_size",  "local_rank", "local_world_size",
                                                 "master_addr", "master_port", "interface"};
  return flags;
}

WorkerEnv read_worker_env(const program::CommandLine& line) {
  WorkerEnv env =
      WorkerEnv::from_environment({.rank = given(line, "rank", FLAGS_rank),
                                   .world_size = given(line, "world_size", FLAGS_world_size),
                                   .local_rank = given(line, "local_rank", FLAGS_local_rank),
                                   .local_world_size = given(line, "local_world_size", FLAGS_local_world_size),
                                   .master_addr = given(line, "master_addr", FLAGS_master_addr),
                                   .master_port = given(line, "master_port", FLAGS_master_port)});
  if (line.given("interface")) {
    env.socket_interface = absl::GetFlag(FLAGS_interface);
    check_interface_is_used(env, env.socket_interface);
  }
  return env;
}

void check_file(const program::CommandLine& line, const std::string& flag, const std::string& value) {
  TORCH_CHECK_VALUE(!line.given(flag) || !value.empty(), "--", flag, ": must name a file");
}

hooks::WireOptions read_route() {
  hooks::WireOptions options;
  options.levels = hooks::parse_levels(absl::GetFlag(FLAGS_levels));
  if (const int64_t node_size = absl::GetFlag(FLAGS_node_size); node_size != 0) {
    options.node_size = node_size;
  }
  if (const double gbit = absl::GetFlag(FLAGS_link_gbit); gbit != 0) {
    options.link_gbit = gbit;
  }
  if (const double us = absl::GetFlag(FLAGS_link_us); us != 0) {
    options.link_us = us;
  }
  return options;
}

}  // namespace narrowcast
