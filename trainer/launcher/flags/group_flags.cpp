#include "trainer/launcher/flags/group_flags.h"

#include <absl/flags/flag.h>
#include <c10/util/Exception.h>

ABSL_FLAG(std::string, nnodes, "1", "How many nodes the job has: a number, or MIN:MAX with --rdzv_backend=c10d.");
ABSL_FLAG(int32_t, node_rank, 0, "With --rdzv_backend=static: which of them this one is, from 0.");
ABSL_FLAG(bool, standalone, false,
          "The job is on this machine alone, and its store on a free port of 127.0.0.1. The same as giving none of the "
          "other flags of this group, which it excludes.");
ABSL_FLAG(std::string, master_addr, "127.0.0.1",
          "The address of node 0, under which the others know it; there the job's store is served.");
ABSL_FLAG(int32_t, master_port, 0, "The TCP port there. 0 is any free one, for one node; for several it is 29500.");
ABSL_FLAG(std::string, rdzv_backend, "static",
          "How several nodes meet: static, each has its --node_rank; c10d, they come and go, and ranks are assigned.");
ABSL_FLAG(std::string, rdzv_endpoint, "",
          "HOST[:PORT] where they meet: with c10d the one of them that serves the store. Another way to write "
          "--master_addr and --master_port otherwise.");
ABSL_FLAG(std::string, rdzv_id, "",
          "A name for the job, the same on all nodes; workers find it in TORCHELASTIC_RUN_ID. Else one is made up.");
ABSL_FLAG(std::string, rdzv_conf, "",
          "KEY=VALUE,... for several nodes, times in seconds: join_timeout=600, last_call_timeout=30, "
          "keep_alive_interval=1, keep_alive_max_attempt=10, heartbeat_timeout=10, read_timeout=60, close_timeout=30, "
          "is_host=BOOL.");
ABSL_FLAG(std::string, local_addr, "",
          "For several nodes: the address or name of this one, for messages, and to listen at where it serves the "
          "store. Default: the host's name, and the address under which the others know it.");

namespace narrowcast {
namespace {

using launcher::GroupRequest;

constexpr int64_t kStaticPort = 29500;  // torchrun's
constexpr int64_t kElasticPort = 29400;

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
  if (request.backend == "c10d") {
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
  return request.backend == "c10d" ? kElasticPort : kStaticPort;
}

void read_endpoint(const program::CommandLine& line, GroupRequest& request) {
  if (line.given("rdzv_endpoint")) {
    request.endpoint = launcher::parse_endpoint(absl::GetFlag(FLAGS_rdzv_endpoint), default_port(request));
    request.endpoint_flags = {.address = "--rdzv_endpoint", .port = "--rdzv_endpoint"};
  } else {
    const int64_t port = absl::GetFlag(FLAGS_master_port);
    request.endpoint = {.host = absl::GetFlag(FLAGS_master_addr), .port = port == 0 ? default_port(request) : port};
  }
  TORCH_CHECK_VALUE(!request.nodes.several() || (request.endpoint.port >= 1 && request.endpoint.port <= 65535),
                    request.endpoint_flags.port, ": port ", request.endpoint.port,
                    " must be from 1 to 65535 for several nodes");
}

}  // namespace

const std::vector<std::string>& group_flags() {
  static const std::vector<std::string> flags = {"nnodes",      "node_rank",    "standalone",    "master_addr",
                                                 "master_port", "rdzv_backend", "rdzv_endpoint", "rdzv_id",
                                                 "rdzv_conf",   "local_addr"};
  return flags;
}

launcher::GroupRequest read_group_request(const program::CommandLine& line) {
  GroupRequest request;
  request.nodes = launcher::parse_nnodes(absl::GetFlag(FLAGS_nnodes));
  request.backend = absl::GetFlag(FLAGS_rdzv_backend);
  TORCH_CHECK_VALUE(request.backend == "static" || request.backend == "c10d", "--rdzv_backend=", request.backend,
                    ": must be static or c10d");
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

}  // namespace narrowcast
