#include "trainer/base/slurm_step.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <vector>

#include "trainer/base/host_list.h"

namespace narrowcast::slurm {
namespace {

constexpr const char* kNodes = "SLURM_STEP_NODELIST";
constexpr const char* kTasksPerNode = "SLURM_STEP_TASKS_PER_NODE";

// Returns expand(setting.text), with the variable's name in what it throws.
template <class Expand>
auto expanded(const Setting& setting, const Expand& expand) {
  try {
    return expand(setting.text);
  } catch (const c10::ValueError& error) {
    TORCH_CHECK_VALUE(false, setting.described(), ": ", error.what_without_backtrace());
  }
}

// How many tasks of the step run on this node.
std::optional<Setting> local_world_size(const EnvironmentVariables& variables) {
  const auto tasks = find_variable(variables, kTasksPerNode);
  const auto node = find_variable(variables, "SLURM_NODEID");
  if (!tasks || !node) {
    return std::nullopt;
  }
  const std::vector<int64_t> counts = expanded(*tasks, expand_counts);
  const auto nodes = static_cast<int64_t>(counts.size());
  const int64_t index = parse_integer(*node, {});
  TORCH_CHECK_VALUE(index < nodes, node->described(), " contradicts ", tasks->described(), ", which has ", nodes,
                    " nodes");
  return Setting{kTasksPerNode, std::to_string(counts[static_cast<size_t>(index)])};
}

// The step's first node, where task 0 runs.
std::optional<Setting> first_node(const EnvironmentVariables& variables) {
  const auto nodes = find_variable(variables, kNodes);
  if (!nodes) {
    return std::nullopt;
  }
  return Setting{kNodes, expanded(*nodes, expand_host_list).front()};
}

std::optional<Setting> port_of_step(const EnvironmentVariables& variables) {
  const auto job = find_variable(variables, "SLURM_JOB_ID");
  const auto step = find_variable(variables, "SLURM_STEP_ID");
  if (!job || !step) {
    return std::nullopt;
  }
  return Setting{"SLURM_JOB_ID", std::to_string(port_of_job(c10::str(job->text, ".", step->text)))};
}

}  // namespace

Place place_in_step(const EnvironmentVariables& variables) {
  Place place;
  place.launcher = "srun";
  place.rank = {find_variable(variables, "SLURM_PROCID"), "SLURM_PROCID"};
  place.world_size = {find_variable(variables, "SLURM_STEP_NUM_TASKS"), "SLURM_STEP_NUM_TASKS"};
  place.local_rank = {find_variable(variables, "SLURM_LOCALID"), "SLURM_LOCALID"};
  place.local_world_size = {local_world_size(variables), kTasksPerNode};
  place.master_addr = {first_node(variables), kNodes};
  place.master_port = {port_of_step(variables), "MASTER_PORT"};
  return place;
}

}  // namespace narrowcast::slurm
