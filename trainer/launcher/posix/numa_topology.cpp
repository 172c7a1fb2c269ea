#include "trainer/launcher/posix/numa_topology.h"

#include <absl/strings/ascii.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_split.h>
#include <c10/util/Exception.h>
#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>

namespace narrowcast::launcher {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMostProcessors = int64_t{1} << 20;

// Returns the only line of a file in /sys.
std::string line_of(const fs::path& file) {
  std::ifstream stream(file);
  std::string line;
  TORCH_CHECK_VALUE(std::getline(stream, line), file.string(), ": cannot be read: ", std::strerror(errno));
  return std::string(absl::StripAsciiWhitespace(line));
}

int64_t number_in(const fs::path& file) {
  const std::string line = line_of(file);
  int64_t number = 0;
  TORCH_CHECK_VALUE(absl::SimpleAtoi(line, &number), file.string(), ": '", line, "' is not a number");
  return number;
}

// Returns the list in the file, which must have at least one number.
std::vector<int64_t> numbers_in(const fs::path& file) {
  const std::vector<int64_t> numbers = parse_number_ranges(line_of(file));
  TORCH_CHECK_VALUE(!numbers.empty(), file.string(), ": lists no processor");
  return numbers;
}

// Returns the NUMA node of each processor; empty if the kernel shows no nodes.
std::map<int64_t, int64_t> nodes_of_processors(const fs::path& sysfs) {
  std::map<int64_t, int64_t> nodes;
  std::error_code none;
  for (fs::directory_iterator entry(sysfs / "devices/system/node", none); entry != fs::directory_iterator();
       entry.increment(none)) {
    const std::string name = entry->path().filename();
    int64_t node = 0;
    if (name.starts_with("node") && absl::SimpleAtoi(name.substr(4), &node)) {
      for (const int64_t processor : parse_number_ranges(line_of(entry->path() / "cpulist"))) {
        nodes[processor] = node;
      }
    }
  }
  return nodes;
}

// Returns the first processor that shares this processor's largest cache; instruction caches do not count. Returns the
// processor itself if the kernel shows no caches.
int64_t largest_cache(const fs::path& folder, int64_t processor) {
  int64_t largest_level = -1;
  int64_t first = processor;
  std::error_code none;
  for (fs::directory_iterator entry(folder / "cache", none); entry != fs::directory_iterator(); entry.increment(none)) {
    if (!entry->path().filename().string().starts_with("index") || line_of(entry->path() / "type") == "Instruction") {
      continue;
    }
    const int64_t level = number_in(entry->path() / "level");
    if (level > largest_level) {
      largest_level = level;
      first = numbers_in(entry->path() / "shared_cpu_list").front();
    }
  }
  return first;
}

}  // namespace

std::vector<int64_t> parse_number_ranges(const std::string& text) {
  std::vector<int64_t> numbers;
  for (const std::string& range : std::vector<std::string>(absl::StrSplit(text, ',', absl::SkipWhitespace()))) {
    const std::vector<std::string> ends = absl::StrSplit(range, '-');
    int64_t first = 0;
    int64_t last = 0;
    const bool is_range = ends.size() <= 2 && absl::SimpleAtoi(ends.front(), &first) &&
                          absl::SimpleAtoi(ends.back(), &last) && first >= 0 && last >= first && last < kMostProcessors;
    TORCH_CHECK_VALUE(is_range, "'", text, "' is not a list of processors like 0-2,4");
    for (int64_t number = first; number <= last; ++number) {
      numbers.push_back(number);
    }
  }
  return numbers;
}

std::vector<int64_t> usable_processors() {
  cpu_set_t usable;
  CPU_ZERO(&usable);
  TORCH_CHECK_VALUE(sched_getaffinity(0, sizeof(usable), &usable) == 0,
                    "the processors that this process may use are not known: ", std::strerror(errno));
  std::vector<int64_t> numbers;
  for (int number = 0; number < CPU_SETSIZE; ++number) {
    if (CPU_ISSET(number, &usable)) {
      numbers.push_back(number);
    }
  }
  return numbers;
}

std::vector<Processor> read_processors(const fs::path& sysfs, const std::vector<int64_t>& numbers) {
  const std::map<int64_t, int64_t> nodes = nodes_of_processors(sysfs);
  std::vector<Processor> processors;
  for (const int64_t number : numbers) {
    const fs::path folder = sysfs / "devices/system/cpu" / ("cpu" + std::to_string(number));
    const auto node = nodes.find(number);
    TORCH_CHECK_VALUE(nodes.empty() || node != nodes.end(), (sysfs / "devices/system/node").string(), ": processor ",
                      number, " is on no NUMA node");
    processors.push_back({.number = number,
                          .node = nodes.empty() ? 0 : node->second,
                          .socket = number_in(folder / "topology/physical_package_id"),
                          .core = numbers_in(folder / "topology/thread_siblings_list").front(),
                          .cache = largest_cache(folder, number)});
  }
  return processors;
}

std::vector<int64_t> read_nodes_of_devices(const fs::path& sysfs, const std::vector<std::string>& addresses) {
  std::vector<int64_t> nodes;
  for (const std::string& address : addresses) {
    nodes.push_back(std::max<int64_t>(0, number_in(sysfs / "bus/pci/devices" / address / "numa_node")));
  }
  return nodes;
}

}  // namespace narrowcast::launcher
