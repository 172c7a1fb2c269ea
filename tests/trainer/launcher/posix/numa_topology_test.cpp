#include "trainer/launcher/posix/numa_topology.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"

namespace narrowcast::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::TemporaryFolder;

std::string topology_error(const std::function<void()>& action) {
  return testing::error_message<c10::ValueError>(action);
}

// Two sockets with one NUMA node each. Each node has one core of two threads, 0 and 2 or 1 and 3, which share a cache.
class NumaTopologyTest : public ::testing::Test {
 protected:
  NumaTopologyTest() {
    for (const int64_t cpu : {0, 1, 2, 3}) {
      const std::string number = std::to_string(cpu);
      const std::string pair = cpu % 2 == 0 ? "0,2\n" : "1,3\n";
      write("cpu/cpu" + number + "/topology/physical_package_id", std::to_string(cpu % 2) + "\n");
      write("cpu/cpu" + number + "/topology/thread_siblings_list", pair);
      write_cache(number, "index0", {"1", "Data", number});
      write_cache(number, "index1", {"4", "Instruction", "0-3"});
      write_cache(number, "index2", {"3", "Unified", pair});
    }
    write("node/node0/cpulist", "0,2\n");
    write("node/node1/cpulist", "1,3\n");
    write("node/possible", "0-1\n");
  }
  void write(const std::string& name, const std::string& text) const {
    const std::filesystem::path path = std::filesystem::path("devices/system") / name;
    std::filesystem::create_directories(folder.path() / path.parent_path());
    folder.write(path, text);
  }
  struct Cache {
    std::string level, type, shared;
  };
  void write_cache(const std::string& cpu, const std::string& index, const Cache& cache) const {
    const std::string place = "cpu/cpu" + cpu + "/cache/" + index + "/";
    write(place + "level", cache.level + "\n");
    write(place + "type", cache.type + "\n");
    write(place + "shared_cpu_list", cache.shared + "\n");
  }
  const TemporaryFolder folder;
};

TEST(NumberRanges, AreListed) {
  EXPECT_THAT(parse_number_ranges("0-2,4,6-7"), ElementsAre(0, 1, 2, 4, 6, 7));
  EXPECT_THAT(parse_number_ranges(""), IsEmpty());
  for (const char* const text : {"a", "1-", "-1", "2-1", "1-2-3", "1048576"}) {
    EXPECT_EQ(topology_error([&] { parse_number_ranges(text); }),
              std::string("'") + text + "' is not a list of processors like 0-2,4");
  }
}

TEST_F(NumaTopologyTest, SaysWhereProcessorsAre) {
  const std::vector<Processor> processors = read_processors(folder.path(), {1, 2});
  ASSERT_EQ(processors.size(), 2U);
  EXPECT_EQ(processors[0].number, 1);
  EXPECT_EQ(processors[0].node, 1);
  EXPECT_EQ(processors[0].socket, 1);
  EXPECT_EQ(processors[0].core, 1);
  EXPECT_EQ(processors[0].cache, 1);
  EXPECT_EQ(processors[1].node, 0);
  EXPECT_EQ(processors[1].core, 0) << "called after its first thread";
  EXPECT_EQ(processors[1].cache, 0) << "the largest cache that is not of instructions";
}

TEST_F(NumaTopologyTest, TakesAMachineWithoutNodesOrCachesForOneNode) {
  std::filesystem::remove_all(folder.path() / "devices/system/node");
  std::filesystem::remove_all(folder.path() / "devices/system/cpu/cpu3/cache");
  const std::vector<Processor> processors = read_processors(folder.path(), {3});
  EXPECT_EQ(processors.at(0).node, 0);
  EXPECT_EQ(processors.at(0).cache, 3);
}

TEST_F(NumaTopologyTest, NamesWhatItCannotRead) {
  EXPECT_THAT(topology_error([&] { read_processors(folder.path(), {9}); }),
              HasSubstr("processor 9 is on no NUMA node"));
  write("cpu/cpu0/topology/physical_package_id", "x\n");
  EXPECT_EQ(topology_error([&] { read_processors(folder.path(), {0}); }),
            folder / "devices/system/cpu/cpu0/topology/physical_package_id" + ": 'x' is not a number");
  std::filesystem::remove(folder.path() / "devices/system/cpu/cpu2/topology/thread_siblings_list");
  EXPECT_THAT(topology_error([&] { read_processors(folder.path(), {2}); }),
              HasSubstr("cpu2/topology/thread_siblings_list: cannot be read: No such file or directory"));
}

TEST_F(NumaTopologyTest, SaysWhereDevicesAre) {
  write("../../bus/pci/devices/0000:dc:00.0/numa_node", "1\n");
  write("../../bus/pci/devices/0000:03:00.0/numa_node", "-1\n");
  EXPECT_THAT(read_nodes_of_devices(folder.path(), {"0000:dc:00.0", "0000:03:00.0"}), ElementsAre(1, 0));
  EXPECT_THAT(topology_error([&] { read_nodes_of_devices(folder.path(), {"0000:04:00.0"}); }),
              HasSubstr("0000:04:00.0"));
}

TEST(UsableProcessors, AreThoseOfThisMachineAtLeastOne) {
  const std::vector<int64_t> usable = usable_processors();
  ASSERT_FALSE(usable.empty());
  EXPECT_EQ(read_processors("/sys", usable).size(), usable.size());
}

}  // namespace
}  // namespace narrowcast::launcher
