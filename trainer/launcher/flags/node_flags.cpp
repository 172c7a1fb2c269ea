#include "trainer/launcher/flags/node_flags.h"

#include <absl/flags/flag.h>
#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <narrowcast/worker_env.h>
#include "trainer/base/network/addresses.h"
#include "trainer/base/program/job_secret.h"
#include "trainer/launcher/job/launch_plan.h"

namespace {

const narrowcast::launcher::GroupRequest kGroupDefaults;
const narrowcast::launcher::RendezvousOptions& kRendezvous = kGroupDefaults.options;

constexpr int64_t kStaticPort = 29500;  // torchrun's
constexpr int64_t kElasticPort = 29400;

double in_seconds(std::chrono::milliseconds time) { return std::chrono::duration<double>(time).count(); }

}  // namespace

ABSL_FLAG(std::string, nnodes, "1", "How many nodes the job has: a number, or MIN:MAX with --rdzv_backend=c10d.");
ABSL_FLAG(int32_t, node_rank, static_cast<int32_t>(kGroupDefaults.node_rank),
          "With --rdzv_backend=static: the number of this node, from 0.");
ABSL_FLAG(bool, standalone, false,
          "The job runs on this machine alone, with its store on a free port of 127.0.0.1. The same as giving none of "
          "the other flags of this group, which it excludes.");
ABSL_FLAG(
    std::string, isolate, "auto",
    "Whether a job on one node gets a private network, in which no other process of the machine can reach it: on, off "
    "or auto. With auto it gets one if that is possible, no address is given, and the program is one of narrowcast's "
    "without a setting that names an interface.");
ABSL_FLAG(double, simulate_gbit, 0,
          "Simulates a network of several machines on this one: each worker is a separate node, whose interface has "
          "this many Gbit/s in each direction.");
ABSL_FLAG(double, simulate_us, 0,
          "With --simulate_gbit: delay of a packet from one worker to another in microseconds, in addition to this "
          "machine's own. Needs a kernel with sch_netem.");
ABSL_FLAG(std::string, master_addr, kGroupDefaults.endpoint.host,
          "The address under which the other nodes reach node 0, which serves the job's store.");
ABSL_FLAG(int32_t, master_port, 0,
          absl::StrCat("The TCP port of the job's store. 0 means any free port with one node, and ", kStaticPort,
                       " with several."));
ABSL_FLAG(std::string, rdzv_backend, kGroupDefaults.backend,
          "How several nodes meet: static (each has a --node_rank) or c10d (nodes come and go, ranks are assigned).");
ABSL_FLAG(std::string, rdzv_endpoint, "",
          "HOST[:PORT] of the node that serves the store with c10d. Without c10d the same as --master_addr and "
          "--master_port.");
ABSL_FLAG(std::string, rdzv_id, "",
          "A name for the job, the same on all nodes and passed to workers in TORCHELASTIC_RUN_ID. Default: a "
          "generated name.");
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
    "A file with a secret of at least 16 bytes that only the launchers of the job have. They then ignore entries of "
    "their store that were not written with the secret, and narrowcast-train's ranks prove to each other that they "
    "know it. Default: the file that NARROWCAST_SECRET_FILE names.");
ABSL_FLAG(std::string, local_addr, "",
          "For several nodes: the address or name of this node. Messages show it, and the store listens there if this "
          "node serves it. Default: the host's name in messages, and the store's address for listening.");

namespace narrowcast::launcher {
namespace {

using network::kLargestPort;

void check_excluded(const program::CommandLine& line, const std::string& flag, const std::vector<std::string>& others) {
  for (const std::string& other : others) {
    TORCH_CHECK_VALUE(!line.given(flag) || !line.given(other), "--", flag, " and --", other,
                      " exclude each other: both set the address at which the nodes meet");
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
                    "--standalone and --rdzv_endpoint exclude each other: --standalone chooses the address and port");
  TORCH_CHECK_VALUE(!absl::GetFlag(FLAGS_standalone) || !(line.given("master_addr") || line.given("master_port")),
                    "--standalone excludes --master_addr and --master_port: --standalone chooses the address and port");
}

void check_several_nodes(const program::CommandLine& line, const GroupRequest& request) {
  TORCH_CHECK_VALUE(!absl::GetFlag(FLAGS_standalone),
                    "--standalone is for one node, but --nnodes=", absl::GetFlag(FLAGS_nnodes));
  if (request.backend == kElasticBackend) {
    refuse_for(line, {"node_rank", "master_addr", "master_port"}, "--rdzv_backend=c10d; use --rdzv_endpoint");
    TORCH_CHECK_VALUE(line.given("rdzv_endpoint"), "--rdzv_backend=c10d with --nnodes=", absl::GetFlag(FLAGS_nnodes),
                      " needs --rdzv_endpoint=HOST:PORT, the same on all nodes");
    return;
  }
  TORCH_CHECK_VALUE(request.nodes.least == request.nodes.most, "--nnodes=", absl::GetFlag(FLAGS_nnodes),
                    ": a range of nodes needs --rdzv_backend=c10d");
  TORCH_CHECK_VALUE(line.given("master_addr") || line.given("rdzv_endpoint"), "--nnodes=", absl::GetFlag(FLAGS_nnodes),
                    " needs --master_addr, the address at which the other nodes reach node 0");
}

// The port if the user gives none.
int64_t default_port(const GroupRequest& request) {
  if (!request.nodes.several()) {
    return 0;
  }
  return request.backend == kElasticBackend ? kElasticPort : kStaticPort;
}

void read_endpoint(const program::CommandLine& line, GroupRequest& request) {
  if (line.given("rdzv_endpoint")) {
    request.endpoint = parse_endpoint(absl::GetFlag(FLAGS_rdzv_endpoint), default_port(request));
    request.endpoint_flags = {.address = "--rdzv_endpoint", .port = "--rdzv_endpoint"};
  } else {
    const int64_t port = absl::GetFlag(FLAGS_master_port);
    request.endpoint = parse_master(absl::GetFlag(FLAGS_master_addr), port == 0 ? std::nullopt : std::optional(port),
                                    default_port(request));
  }
  TORCH_CHECK_VALUE(!request.nodes.several() || (request.endpoint.port >= 1 && request.endpoint.port <= kLargestPort),
                    request.endpoint_flags.port, ": port ", request.endpoint.port, " must be from 1 to ", kLargestPort,
                    " for several nodes");
}

// Reads this node's address, which must have no port.
std::string read_local_addr() {
  const std::string text = absl::GetFlag(FLAGS_local_addr);
  const std::optional<network::HostAndPort> read = network::parse_host_and_port(text);
  TORCH_CHECK_VALUE(text.empty() || (read && !read->port), "--local_addr=", text, ": must be a name or an address");
  return text.empty() ? "" : read->host;
}

// Reads the flags about nodes.
GroupRequest read_group_request(const program::CommandLine& line) {
  GroupRequest request;
  request.nodes = parse_nnodes(absl::GetFlag(FLAGS_nnodes));
  request.backend = absl::GetFlag(FLAGS_rdzv_backend);
  TORCH_CHECK_VALUE(request.backend == kStaticBackend || request.backend == kElasticBackend,
                    "--rdzv_backend=", request.backend, ": must be ", kStaticBackend, " or ", kElasticBackend);
  check_excluded(line, "rdzv_endpoint", {"master_addr", "master_port"});
  request.node_rank = absl::GetFlag(FLAGS_node_rank);
  TORCH_CHECK_VALUE(request.node_rank >= 0 && request.node_rank < request.nodes.most, "--node_rank=", request.node_rank,
                    ": must be from 0 to ", request.nodes.most - 1, " with --nnodes=", absl::GetFlag(FLAGS_nnodes));
  request.nodes.several() ? check_several_nodes(line, request) : check_one_node(line);
  read_endpoint(line, request);
  request.local_addr = read_local_addr();
  request.rdzv_id = absl::GetFlag(FLAGS_rdzv_id);
  request.options = parse_rendezvous_options(absl::GetFlag(FLAGS_rdzv_conf), request.backend);
  return request;
}

// Reads the flags of a simulated network. It connects the workers of this launcher, which therefore chooses where they
// meet.
std::optional<NetworkShape> read_simulated_network(const program::CommandLine& line, const GroupRequest& group) {
  if (!line.given("simulate_gbit")) {
    TORCH_CHECK_VALUE(!line.given("simulate_us"), "--simulate_us=", absl::GetFlag(FLAGS_simulate_us),
                      ": needs --simulate_gbit, the rate of the simulated network");
    return std::nullopt;
  }
  const NetworkShape shape = {.gbit = absl::GetFlag(FLAGS_simulate_gbit), .us = absl::GetFlag(FLAGS_simulate_us)};
  check_shape(shape);
  TORCH_CHECK_VALUE(!group.nodes.several(),
                    "--simulate_gbit is for one node, but --nnodes=", absl::GetFlag(FLAGS_nnodes));
  for (const char* const flag : {"master_addr", "rdzv_backend", "rdzv_endpoint"}) {
    TORCH_CHECK_VALUE(!line.given(flag), "--simulate_gbit and --", flag,
                      " exclude each other: in a simulated network the launcher chooses where the workers meet");
  }
  TORCH_CHECK_VALUE(
      absl::GetFlag(FLAGS_isolate) != "off",
      "--simulate_gbit and --isolate=off exclude each other: a simulated network is always private to the job");
  return shape;
}

// Reads the job's secret. Workers may run in another folder, so they get an absolute path.
void read_secret(const program::CommandLine& line, LaunchRequest& wanted) {
  const EnvironmentVariables environment = process_environment();
  if (line.given("secret_file")) {
    wanted.group.secret = program::JobSecret::read("--secret_file", absl::GetFlag(FLAGS_secret_file));
    wanted.secret_file = std::filesystem::absolute(absl::GetFlag(FLAGS_secret_file));
  } else {
    wanted.group.secret = program::JobSecret::of_environment(environment);
  }
}

}  // namespace

void read_node_flags(const program::CommandLine& line, LaunchRequest& wanted) {
  wanted.group = read_group_request(line);
  read_secret(line, wanted);
  wanted.isolation = parse_isolation("--isolate", absl::GetFlag(FLAGS_isolate));
  wanted.simulated = read_simulated_network(line, wanted.group);
}

}  // namespace narrowcast::launcher
