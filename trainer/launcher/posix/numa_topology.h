// The topology of a machine from Linux's /sys: NUMA nodes, sockets, cores and caches of its processors, and the NUMA
// nodes of devices.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace narrowcast::launcher {

// A usable processor. Numbers are the kernel's; a core or a cache has the number of its first processor.
struct Processor {
  int64_t number = 0;
  int64_t node = 0;    // NUMA node
  int64_t socket = 0;  // physical package
  int64_t core = 0;    // shared by its hardware threads
  int64_t cache = 0;   // largest cache, shared by a core complex
};

// Parses a list like "0-2,4,6-7", the format of files in /sys. Returns the numbers in the order of the text. Throws
// c10::ValueError naming the text for anything else, and for a number of 2^20 or more.
std::vector<int64_t> parse_number_ranges(const std::string& text);

// Returns the processors that this process may use, in ascending order.
std::vector<int64_t> usable_processors();

// Returns the places of the processors `numbers`, in their order, read from `sysfs` (/sys). If the kernel shows no NUMA
// nodes all processors are on node 0. Throws c10::ValueError naming a file that cannot be read or has other contents.
std::vector<Processor> read_processors(const std::filesystem::path& sysfs, const std::vector<int64_t>& numbers);

// Returns the NUMA nodes of the devices at these PCI addresses, like "0000:dc:00.0". A machine with one node often
// shows -1, which means node 0. Throws like read_processors.
std::vector<int64_t> read_nodes_of_devices(const std::filesystem::path& sysfs,
                                           const std::vector<std::string>& addresses);

}  // namespace narrowcast::launcher
