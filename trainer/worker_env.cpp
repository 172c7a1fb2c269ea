#include "trainer/worker_env.h"

#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <c10/util/Exception.h>
#include <unistd.h>

#include <limits>
#include <optional>
#include <string>

namespace narrowcast {
namespace {

// A variable that is set to nothing counts as not set, as in most shells' scripts.
std::optional<std::string> lookup(const EnvironmentVariables& variables, const std::string& name) {
  const auto found = variables.find(name);
  if (found == variables.end() || found->second.empty()) {
    return std::nullopt;
  }
  return found->second;
}

std::string text_or_empty(const EnvironmentVariables& variables, const std::string& name) {
  return lookup(variables, name).value_or("");
}

std::string required(const EnvironmentVariables& variables, const std::string& name) {
  const auto value = lookup(variables, name);
  TORCH_CHECK_VALUE(value.has_value(), name,
                    " is not set, but other variables say that a launcher started this process;"
                    " start it with narrowcast-run, or unset RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE");
  return *value;
}

struct Range {
  int64_t least = 0;
  int64_t most = std::numeric_limits<int32_t>::max();
};

int64_t parse_integer(const std::string& name, const std::string& text, Range range) {
  int64_t value = 0;
  TORCH_CHECK_VALUE(absl::SimpleAtoi(text, &value), name, "='", text, "' is not an integer");
  TORCH_CHECK_VALUE(value >= range.least && value <= range.most, name, "=", value, " is not between ", range.least,
                    " and ", range.most);
  return value;
}

int64_t required_integer(const EnvironmentVariables& variables, const std::string& name, Range range) {
  return parse_integer(name, required(variables, name), range);
}

bool parse_flag(const EnvironmentVariables& variables, const std::string& name) {
  const std::string text = lookup(variables, name).value_or("False");
  bool value = false;
  TORCH_CHECK_VALUE(absl::SimpleAtob(text, &value), name, "='", text, "' is neither True nor False");
  return value;
}

bool is_loopback(const std::string& address) {
  return address == "localhost" || address == "::1" || absl::StartsWith(address, "127.");
}

bool started_by_launcher(const EnvironmentVariables& variables) {
  for (const char* const name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}) {
    if (lookup(variables, name)) {
      return true;
    }
  }
  return false;
}

void read_ranks(const EnvironmentVariables& variables, WorkerEnv& env) {
  env.world_size = required_integer(variables, "WORLD_SIZE", {.least = 1});
  env.rank = required_integer(variables, "RANK", {});
  TORCH_CHECK_VALUE(env.rank < env.world_size, "RANK=", env.rank, " must be less than WORLD_SIZE=", env.world_size);
}

void read_master(const EnvironmentVariables& variables, WorkerEnv& env) {
  if (env.world_size > 1) {
    env.master_addr = required(variables, "MASTER_ADDR");
    env.master_port = required_integer(variables, "MASTER_PORT", {.least = 1, .most = 65535});
  }
}

void check_local_ranks(const WorkerEnv& env) {
  TORCH_CHECK_VALUE(env.local_world_size <= env.world_size, "LOCAL_WORLD_SIZE=", env.local_world_size,
                    " must not exceed WORLD_SIZE=", env.world_size);
  TORCH_CHECK_VALUE(env.local_rank < env.local_world_size, "LOCAL_RANK=", env.local_rank,
                    " must be less than LOCAL_WORLD_SIZE=", env.local_world_size);
  TORCH_CHECK_VALUE(!env.on_one_node() || env.local_rank == env.rank, "LOCAL_RANK=", env.local_rank,
                    " must equal RANK=", env.rank, " where LOCAL_WORLD_SIZE and WORLD_SIZE are both ", env.world_size);
  TORCH_CHECK_VALUE(env.on_one_node() || !is_loopback(env.master_addr), "MASTER_ADDR=", env.master_addr,
                    " is this node's own loopback, but WORLD_SIZE=", env.world_size,
                    " and LOCAL_WORLD_SIZE=", env.local_world_size, " say that other nodes must reach it");
}

void read_local_ranks(const EnvironmentVariables& variables, WorkerEnv& env) {
  const bool any_given = lookup(variables, "LOCAL_RANK") || lookup(variables, "LOCAL_WORLD_SIZE");
  if (!any_given && (env.world_size == 1 || is_loopback(env.master_addr))) {
    env.local_rank = env.rank;
    env.local_world_size = env.world_size;
    return;
  }
  env.local_world_size = required_integer(variables, "LOCAL_WORLD_SIZE", {.least = 1});
  env.local_rank = required_integer(variables, "LOCAL_RANK", {});
  check_local_ranks(env);
}

void read_elastic(const EnvironmentVariables& variables, WorkerEnv& env) {
  env.use_agent_store = parse_flag(variables, "TORCHELASTIC_USE_AGENT_STORE");
  env.restart_count =
      parse_integer("TORCHELASTIC_RESTART_COUNT", lookup(variables, "TORCHELASTIC_RESTART_COUNT").value_or("0"), {});
  env.run_id = text_or_empty(variables, "TORCHELASTIC_RUN_ID");
  env.error_file = text_or_empty(variables, "TORCHELASTIC_ERROR_FILE");
}

}  // namespace

EnvironmentVariables process_environment() {
  EnvironmentVariables variables;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    if (equals != std::string::npos) {
      variables.emplace(text.substr(0, equals), text.substr(equals + 1));
    }
  }
  return variables;
}

WorkerEnv WorkerEnv::from_environment() { return from_variables(process_environment()); }

WorkerEnv WorkerEnv::from_variables(const EnvironmentVariables& variables) {
  WorkerEnv env;
  env.socket_interface = text_or_empty(variables, "GLOO_SOCKET_IFNAME");
  if (!started_by_launcher(variables)) {
    return env;
  }
  read_ranks(variables, env);
  read_master(variables, env);
  read_local_ranks(variables, env);
  read_elastic(variables, env);
  return env;
}

SessionEnv SessionEnv::from_environment() { return from_variables(process_environment()); }

SessionEnv SessionEnv::from_variables(const EnvironmentVariables& variables) {
  SessionEnv env;
  env.no_color = lookup(variables, "NO_COLOR").has_value();
  env.omp_num_threads_set = lookup(variables, "OMP_NUM_THREADS").has_value();
  env.term = text_or_empty(variables, "TERM");
  if (const auto cache = lookup(variables, "XDG_CACHE_HOME")) {
    env.cache_home = *cache;
  } else if (const auto home = lookup(variables, "HOME")) {
    env.cache_home = std::filesystem::path(*home) / ".cache";
  }
  return env;
}

}  // namespace narrowcast
