#include "trainer/base/environment/slurm.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <vector>

namespace narrowcast::slurm {
namespace {

constexpr size_t kMostEntries = 65536;

int64_t parse_number(const std::string& text) {
  const bool digits = !text.empty() && text.size() <= 9 &&
                      std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
  TORCH_CHECK_VALUE(digits, "'", text, "' is not a number");
  return std::stoll(text);
}

void check_size(size_t entries) {
  TORCH_CHECK_VALUE(entries <= kMostEntries, "it has more than ", kMostEntries, " entries");
}

// `number` with leading zeros, as long as `model`.
std::string padded(int64_t number, const std::string& model) {
  const std::string text = std::to_string(number);
  return text.size() < model.size() ? std::string(model.size() - text.size(), '0') + text : text;
}

// "01-03" -> {"01", "02", "03"}; "7" -> {"7"}.
std::vector<std::string> expand_range(const std::string& range) {
  const size_t dash = range.find('-');
  const std::string from = range.substr(0, dash);
  const int64_t first = parse_number(from);
  const int64_t last = dash == std::string::npos ? first : parse_number(range.substr(dash + 1));
  TORCH_CHECK_VALUE(first <= last, "the range '", range, "' runs backwards");
  check_size(static_cast<size_t>(last - first) + 1);
  std::vector<std::string> numbers;
  for (int64_t number = first; number <= last; ++number) {
    numbers.push_back(padded(number, from));
  }
  return numbers;
}

// Splits the list at commas outside of brackets.
std::vector<std::string> entries_of(const std::string& list) {
  std::vector<std::string> entries(1);
  bool inside = false;
  for (const char character : list) {
    inside = character == '[' || (inside && character != ']');
    if (character == ',' && !inside) {
      entries.emplace_back();
    } else {
      entries.back() += character;
    }
  }
  return entries;
}

// The names that one entry of the list stands for.
std::vector<std::string> expand_name(const std::string& name) {
  const size_t open = name.find('[');
  const size_t close = name.find(']');
  if (open == std::string::npos) {
    TORCH_CHECK_VALUE(close == std::string::npos, "']' without '['");
    return {name};
  }
  TORCH_CHECK_VALUE(close != std::string::npos && open < close, "'[' without ']'");
  const std::vector<std::string> tails = expand_name(name.substr(close + 1));
  std::vector<std::string> names;
  for (const std::string& range : entries_of(name.substr(open + 1, close - open - 1))) {
    for (const std::string& number : expand_range(range)) {
      for (const std::string& tail : tails) {
        names.push_back(c10::str(name.substr(0, open), number, tail));
        check_size(names.size());
      }
    }
  }
  return names;
}

constexpr const char* kNodes = "SLURM_STEP_NODELIST";
constexpr const char* kTasksPerNode = "SLURM_STEP_TASKS_PER_NODE";

// Returns expand(setting.text). Errors that it throws begin with the variable's name and value.
template <class Expand>
auto expanded(const Setting& setting, const Expand& expand) {
  try {
    return expand(setting.text);
  } catch (const c10::ValueError& error) {
    TORCH_CHECK_VALUE(false, setting.described(), ": ", error.what_without_backtrace());
  }
}

// The number of tasks of the step on this node.
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

std::vector<std::string> expand_host_list(const std::string& list) {
  std::vector<std::string> hosts;
  for (const std::string& entry : entries_of(list)) {
    TORCH_CHECK_VALUE(!entry.empty(), "a host's name is empty");
    const std::vector<std::string> names = expand_name(entry);
    hosts.insert(hosts.end(), names.begin(), names.end());
    check_size(hosts.size());
  }
  return hosts;
}

std::vector<int64_t> expand_counts(const std::string& list) {
  std::vector<int64_t> counts;
  for (std::string entry : entries_of(list)) {
    int64_t times = 1;
    if (const size_t open = entry.find("(x"); open != std::string::npos) {
      TORCH_CHECK_VALUE(entry.back() == ')', "'", entry, "' must be COUNT or COUNT(xTIMES)");
      times = parse_number(entry.substr(open + 2, entry.size() - open - 3));
      entry.resize(open);
    }
    check_size(counts.size() + static_cast<size_t>(times));
    counts.insert(counts.end(), static_cast<size_t>(times), parse_number(entry));
  }
  return counts;
}

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
