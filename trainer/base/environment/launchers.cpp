#include "trainer/base/environment/launchers.h"

#include <c10/util/Exception.h>

#include <charconv>
#include <string_view>
#include <utility>
#include <vector>

#include "trainer/base/environment/slurm.h"
#include "trainer/base/files/hash.h"
#include "trainer/base/network/addresses.h"

namespace narrowcast {
namespace {

using Names = std::vector<std::string>;

// All of `text`, except surrounding white space, as a decimal number.
std::optional<int64_t> integer_in(std::string_view text) {
  constexpr std::string_view kSpace = " \t\n\v\f\r";
  const size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) {
    return std::nullopt;
  }
  text = text.substr(first, text.find_last_not_of(kSpace) + 1 - first);
  if (text.starts_with('+') && !text.starts_with("+-")) {
    text.remove_prefix(1);
  }
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(value) : std::nullopt;
}

bool is_set(const EnvironmentVariables& variables, const std::string& name) {
  return find_variable(variables, name).has_value();
}

bool any_set(const EnvironmentVariables& variables, const Names& names) {
  for (const std::string& name : names) {
    if (is_set(variables, name)) {
      return true;
    }
  }
  return false;
}

// The first of `names` that is set.
Place::Value first_set(const EnvironmentVariables& variables, const Names& names) {
  for (const std::string& name : names) {
    if (const auto setting = find_variable(variables, name)) {
      return {setting, name};
    }
  }
  return {std::nullopt, names.front()};
}

// The variables RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE, which torchrun sets and people set by hand.
Place plain_place(const EnvironmentVariables& variables, const std::string& launcher) {
  Place place;
  place.launcher = launcher;
  place.rank = first_set(variables, {"RANK"});
  place.world_size = first_set(variables, {"WORLD_SIZE"});
  place.local_rank = first_set(variables, {"LOCAL_RANK"});
  place.local_world_size = first_set(variables, {"LOCAL_WORLD_SIZE"});
  return place;
}

// MPI launchers set no address, but ranks that share a node do not need the network.
void add_loopback_on_one_node(Place& place) {
  const bool known = place.world_size.setting && place.local_world_size.setting;
  if (known && place.world_size.setting->text == place.local_world_size.setting->text) {
    place.master_addr.setting = Setting{"the default MASTER_ADDR", network::kLoopback};
  }
}

Place open_mpi_place(const EnvironmentVariables& variables) {
  Place place;
  place.launcher = "Open MPI";
  place.rank = first_set(variables, {"OMPI_COMM_WORLD_RANK"});
  place.world_size = first_set(variables, {"OMPI_COMM_WORLD_SIZE"});
  place.local_rank = first_set(variables, {"OMPI_COMM_WORLD_LOCAL_RANK"});
  place.local_world_size = first_set(variables, {"OMPI_COMM_WORLD_LOCAL_SIZE"});
  if (const auto job = find_variable(variables, "PMIX_NAMESPACE")) {
    place.master_port.setting = Setting{"PMIX_NAMESPACE", std::to_string(port_of_job(job->text))};
  }
  add_loopback_on_one_node(place);
  return place;
}

Place pmi_place(const EnvironmentVariables& variables) {
  Place place;
  place.launcher = "a PMI launcher";
  place.rank = first_set(variables, {"PMI_RANK"});
  place.world_size = first_set(variables, {"PMI_SIZE"});
  place.local_rank = first_set(variables, {"MPI_LOCALRANKID", "PMI_LOCAL_RANK", "PALS_LOCAL_RANKID"});
  place.local_world_size = first_set(variables, {"MPI_LOCALNRANKS", "PMI_LOCAL_SIZE", "PALS_LOCAL_SIZE"});
  if (const auto job = find_variable(variables, "PALS_APID")) {
    place.master_port.setting = Setting{"PALS_APID", std::to_string(port_of_job(job->text))};
  }
  add_loopback_on_one_node(place);
  return place;
}

Place hand_made_place(const EnvironmentVariables& variables) {
  Place place = plain_place(variables, "a launcher");
  const bool local_known = place.local_rank.setting || place.local_world_size.setting;
  if (!local_known && is_set(variables, "KUBERNETES_SERVICE_HOST")) {  // A pod is a separate node.
    place.local_rank.setting = Setting{"LOCAL_RANK", "0"};
    place.local_world_size.setting = Setting{"LOCAL_WORLD_SIZE", "1"};
  }
  return place;
}

Place launchers_place(const EnvironmentVariables& variables) {
  if (is_set(variables, "TORCHELASTIC_RUN_ID")) {
    return plain_place(variables, "torchrun");
  }
  if (any_set(variables, {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"})) {
    return open_mpi_place(variables);
  }
  // Under Slurm, mpiexec starts its own proxy on each node with srun, and the processes inherit the proxy's Slurm
  // variables.
  if (is_set(variables, "PMI_RANK") && is_set(variables, "MPI_LOCALNRANKS")) {
    return pmi_place(variables);
  }
  if (is_set(variables, "SLURM_STEP_ID")) {  // A batch script has SLURM_PROCID=0 as well, but no step.
    return slurm::place_in_step(variables);
  }
  if (any_set(variables, {"PMI_RANK", "PMI_SIZE"})) {
    return pmi_place(variables);
  }
  const bool plain = any_set(variables, {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"});
  return plain ? hand_made_place(variables) : plain_place(variables, "");
}

}  // namespace

std::optional<Setting> find_variable(const EnvironmentVariables& variables, const std::string& name) {
  std::string text = text_or_empty(variables, name);
  return text.empty() ? std::nullopt : std::optional(Setting{name, std::move(text)});
}

int64_t parse_integer(const Setting& setting, Range range) {
  const std::optional<int64_t> value = integer_in(setting.text);
  TORCH_CHECK_VALUE(value.has_value(), setting.name, "='", setting.text, "' is not an integer");
  TORCH_CHECK_VALUE(*value >= range.least && *value <= range.most, setting.described(), " is not between ", range.least,
                    " and ", range.most);
  return *value;
}

Place find_place(const EnvironmentVariables& variables) {
  Place place = launchers_place(variables);
  const Place plain = plain_place(variables, "");
  place.rank.other = plain.rank.setting;
  place.world_size.other = plain.world_size.setting;
  place.local_rank.other = plain.local_rank.setting;
  place.local_world_size.other = plain.local_world_size.setting;
  if (const auto address = find_variable(variables, "MASTER_ADDR")) {
    place.master_addr.setting = address;
  }
  if (const auto port = find_variable(variables, "MASTER_PORT")) {
    place.master_port.setting = port;
  }
  place.master_addr.missing = "MASTER_ADDR";
  place.master_port.missing = "MASTER_PORT";
  return place;
}

int64_t port_of_job(const std::string& job) {
  constexpr uint64_t kFirstPort = 15000;  // Up to 29999: below Linux's ephemeral ports.
  constexpr uint64_t kPorts = 15000;
  return static_cast<int64_t>(kFirstPort + fnv1a(job) % kPorts);
}

}  // namespace narrowcast
