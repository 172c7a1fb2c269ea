// The topology of a machine as Linux shows it under /sys: NUMA nodes, sockets, cores and caches of its processors, and
// the NUMA nodes of devices.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace narrowcast::launcher {

// One processor that may be used. Numbers are the kernel's; a core and a cache are called after their first processor.
struct Processor {
  int64_t number = 0;
  int64_t node = 0;    // NUMA node
  int64_t socket = 0;  // physical package
  int64_t core = 0;    // of several hardware threads
  int64_t cache = 0;   // largest cache, which a core complex shares
};

// The numbers in a list like "0-2,4,6-7", as files of /sys have them, in ascending order. Throws c10::ValueError naming
// the text for anything else, and for a number above 2^20.
std::vector<int64_t> parse_number_ranges(const std::string& text);

// The processors that this process may use, in ascending order.
std::vector<int64_t> usable_processors();

// Where each of the processors `numbers` is, in their order, by `sysfs`, which is /sys. Where the kernel shows no NUMA
// nodes all are on node 0. Throws c10::ValueError naming a file that cannot be read or holds something else.
std::vector<Processor> read_processors(const std::filesystem::path& sysfs, const std::vector<int64_t>& numbers);

// The NUMA nodes of devices on the PCI bus with these addresses, like "0000:dc:00.0". A machine with one node often
// shows -1: that is node 0. Throws as read_processors does.
std::vector<int64_t> read_nodes_of_devices(const std::filesystem::path& sysfs,
                                           const std::vector<std::string>& addresses);

}  // namespace narrowcast::launcher
