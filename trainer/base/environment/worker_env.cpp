#include <narrowcast/worker_env.h>

#include <c10/util/Exception.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <string>
#include <vector>

#include "trainer/base/environment/launchers.h"
#include "trainer/base/network/addresses.h"
#include "trainer/base/network/places.h"
#include "trainer/base/network/tcp_store.h"

namespace narrowcast {
namespace {

// Ignores upper and lower case.
bool is_one_of(std::string text, const std::vector<std::string>& words) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return std::find(words.begin(), words.end(), text) != words.end();
}

const Setting& required(const Place& place, const Place::Value& value) {
  TORCH_CHECK_VALUE(value.setting.has_value(), value.missing, " is not set, but ",
                    place.launcher.empty() ? "flags" : "variables of " + place.launcher,
                    " show that this process is one of several; set it, or give the flag");
  TORCH_CHECK_VALUE(!value.other || value.other->text == value.setting->text, value.other->described(), " contradicts ",
                    value.setting->described(), " of ", place.launcher, ": unset one, or give the flag");
  return *value.setting;
}

void override_with(const char* flag, const std::optional<int64_t>& given, Place::Value& value) {
  if (given) {
    value = {Setting{flag, std::to_string(*given)}, flag};
  }
}

void apply_flags(const WorkerFlags& flags, Place& place) {
  override_with("--rank", flags.rank, place.rank);
  override_with("--world_size", flags.world_size, place.world_size);
  override_with("--local_rank", flags.local_rank, place.local_rank);
  override_with("--local_world_size", flags.local_world_size, place.local_world_size);
  override_with("--master_port", flags.master_port, place.master_port);
  if (flags.master_addr) {
    place.master_addr.setting = Setting{"--master_addr", *flags.master_addr};
  }
}

// Whether anything says that this process is part of a job.
bool is_in_job(const Place& place, const WorkerFlags& flags) {
  return !place.launcher.empty() || flags.rank || flags.world_size || flags.local_rank || flags.local_world_size;
}

void check_useless(const WorkerFlags& flags) {
  const char* const flag = flags.master_addr ? "--master_addr" : "--master_port";
  TORCH_CHECK_VALUE(!flags.master_addr && !flags.master_port, flag,
                    ": has no effect in a single process; give --rank and --world_size for several processes");
}

void read_ranks(const Place& place, WorkerEnv& env) {
  const Setting& world_size = required(place, place.world_size);
  const Setting& rank = required(place, place.rank);
  env.world_size = parse_integer(world_size, {.least = 1});
  env.rank = parse_integer(rank, {});
  TORCH_CHECK_VALUE(env.rank < env.world_size, rank.described(), " must be less than ", world_size.described());
}

void read_master(const Place& place, WorkerEnv& env) {
  if (env.world_size > 1 || env.node > 0) {
    const Setting& address = required(place, place.master_addr);
    TORCH_CHECK_VALUE(!address.text.empty(), address.described(), " must be a name or an address");
    const std::optional<network::HostAndPort> read = network::parse_host_and_port(address.text);
    TORCH_CHECK_VALUE(read && read->port != 0, address.described(), " must be a name or an address");
    env.master_addr = read->host;
    const Place::Value& port = place.master_port;
    env.master_port = read->port && !port.setting
                          ? *read->port
                          : parse_integer(required(place, port), {.least = 1, .most = network::kLargestPort});
    TORCH_CHECK_VALUE(!read->port || read->port == env.master_port, address.described(), " contradicts ",
                      port.setting ? port.setting->described() : "");
  }
}

void check_local_ranks(const Place& place, const WorkerEnv& env) {
  const std::string rank = place.rank.setting->described();
  const std::string world_size = place.world_size.setting->described();
  const std::string local_rank = place.local_rank.setting->described();
  const std::string local_world_size = place.local_world_size.setting->described();
  TORCH_CHECK_VALUE(env.local_world_size <= env.world_size, local_world_size, " must not exceed ", world_size);
  TORCH_CHECK_VALUE(env.local_rank < env.local_world_size, local_rank, " must be less than ", local_world_size);
  TORCH_CHECK_VALUE(!env.on_one_node() || env.local_rank == env.rank, local_rank, " must equal ", rank,
                    " where all ranks are on one node (", local_world_size, ", ", world_size, ")");
  TORCH_CHECK_VALUE(env.on_one_node() || !network::names_loopback(env.master_addr),
                    place.master_addr.setting->described(), " is a loopback address of this node, but ", world_size,
                    " and ", local_world_size, " mean that other nodes must reach it");
}

void read_local_ranks(const Place& place, WorkerEnv& env) {
  const bool any_given = place.local_rank.setting || place.local_world_size.setting;
  if (!any_given && (env.world_size == 1 || network::names_loopback(env.master_addr))) {
    env.local_rank = env.rank;
    env.local_world_size = env.world_size;
  } else {
    env.local_world_size = parse_integer(required(place, place.local_world_size), {.least = 1});
    env.local_rank = parse_integer(required(place, place.local_rank), {});
    check_local_ranks(place, env);
  }
}

bool parse_switch(const EnvironmentVariables& variables, const std::string& name) {
  const std::string text = text_or_empty(variables, name);
  const bool is_true = is_one_of(text, {"true", "t", "yes", "y", "1"});
  TORCH_CHECK_VALUE(is_true || text.empty() || is_one_of(text, {"false", "f", "no", "n", "0"}), name, "='", text,
                    "' must be True or False");
  return is_true;
}

// "NODE/RANK", e.g. "3/1".
void read_node(const Setting& setting, WorkerEnv& env) {
  const size_t slash = std::min(setting.text.find('/'), setting.text.size());
  const auto part = [&](const std::string& text, Range range) {
    return parse_integer({.name = setting.name, .text = text}, range);
  };
  env.node = part(setting.text.substr(0, slash), {.least = 1});
  env.rank_on_node = part(setting.text.substr(std::min(slash + 1, setting.text.size())), {});
}

void read_elastic(const EnvironmentVariables& variables, WorkerEnv& env) {
  env.use_agent_store = parse_switch(variables, "TORCHELASTIC_USE_AGENT_STORE");
  if (const auto count = find_variable(variables, "TORCHELASTIC_RESTART_COUNT")) {
    env.restart_count = parse_integer(*count, {});
  }
  env.run_id = text_or_empty(variables, "TORCHELASTIC_RUN_ID");
  const std::string recovery = text_or_empty(variables, rendezvous::kRecoveryVariable);
  TORCH_CHECK_VALUE(recovery.empty() || recovery == rendezvous::kRecoveryInPlace, rendezvous::kRecoveryVariable, "='",
                    recovery, "' must be ", rendezvous::kRecoveryInPlace, " or not set");
  TORCH_CHECK_VALUE(recovery.empty() || env.use_agent_store, rendezvous::kRecoveryVariable, "=", recovery,
                    " needs a launcher that serves the store, TORCHELASTIC_USE_AGENT_STORE=True");
  env.recovers_in_place = !recovery.empty();
  const auto node = find_variable(variables, rendezvous::kNodeVariable);
  if (node && env.recovers_in_place) {
    read_node(*node, env);
    env.store_file = text_or_empty(variables, rendezvous::kStoreFileVariable);
  }
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

std::string text_or_empty(const EnvironmentVariables& variables, const std::string& name) {
  const auto found = variables.find(name);
  return found == variables.end() ? "" : found->second;
}

std::string worker_error_file() { return text_or_empty(process_environment(), "TORCHELASTIC_ERROR_FILE"); }

SessionEnv SessionEnv::from_environment() { return from_variables(process_environment()); }

SessionEnv SessionEnv::from_variables(const EnvironmentVariables& variables) {
  SessionEnv env;
  env.no_color = !text_or_empty(variables, "NO_COLOR").empty();
  env.omp_num_threads_set = !text_or_empty(variables, "OMP_NUM_THREADS").empty();
  env.term = text_or_empty(variables, "TERM");
  env.cache_home = text_or_empty(variables, "XDG_CACHE_HOME");
  const std::string home = text_or_empty(variables, "HOME");
  if (env.cache_home.empty() && !home.empty()) {
    env.cache_home = std::filesystem::path(home) / ".cache";
  }
  return env;
}

WorkerEnv WorkerEnv::from_environment(const WorkerFlags& flags) { return from_variables(process_environment(), flags); }

WorkerEnv WorkerEnv::from_variables(const EnvironmentVariables& variables, const WorkerFlags& flags) {
  WorkerEnv env;
  env.socket_interface = text_or_empty(variables, "GLOO_SOCKET_IFNAME");
  env.error_file = text_or_empty(variables, "TORCHELASTIC_ERROR_FILE");
  Place place = find_place(variables);
  if (!is_in_job(place, flags)) {
    check_useless(flags);
    return env;
  }
  apply_flags(flags, place);
  read_ranks(place, env);
  read_elastic(variables, env);
  read_master(place, env);
  read_local_ranks(place, env);
  return env;
}

}  // namespace narrowcast
