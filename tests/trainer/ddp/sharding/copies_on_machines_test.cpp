// Second copies of shards on machines that are not the nodes of the hook. A machine is a network namespace here.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>
#include <ostream>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include <narrowcast/ddp.h>
#include <narrowcast/sharded_optimizer.h>
#include "ops/common/file_descriptor.h"
#include "tests/support/ranks.h"
#include "tests/trainer/ddp/sharding/over_all_fixtures.h"
#include "trainer/ddp/sharding/shard_agreement.h"
#include "trainer/ddp/sharding/sharded_parts.h"

namespace narrowcast::testing {
namespace {

using ::testing::ElementsAreArray;
using Group = ProcessGroupPtr;

// Network namespaces, one for each machine. Only root can make them.
class Machines {
 public:
  explicit Machines(int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      std::thread([this] {
        if (::unshare(CLONE_NEWNET) == 0)
          spaces_.emplace_back(::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
      }).join();
    }
    are_made_ = std::ssize(spaces_) == count;
  }
  bool are_made() const { return are_made_; }

  // The calling thread, and those that it starts, are on that machine from now on. Their open connections remain.
  void enter(int64_t machine) const {
    if (::setns(spaces_.at(machine).get(), CLONE_NEWNET) != 0) {
      throw std::system_error(errno, std::generic_category(), "setns");
    }
  }

 private:
  std::vector<FileDescriptor> spaces_;
  bool are_made_ = false;
};

struct MachinesCase {
  std::string name;
  std::vector<int64_t> machine_of_rank;
  int64_t node_size;             // Of the hook.
  std::vector<int64_t> holders;  // By rank, the rank with the copy of its shard.
};

void PrintTo(const MachinesCase& value, std::ostream* out) { *out << value.name; }

class CopiesOnMachines : public ::testing::TestWithParam<MachinesCase> {
 protected:
  void run(const RankBody& body) const {
    const MachinesCase& value = GetParam();
    const Machines machines(std::ranges::max(value.machine_of_rank) + 1);
    if (!machines.are_made()) GTEST_SKIP() << "needs root: it makes network namespaces";
    run_ranks(std::ssize(value.machine_of_rank), [&](int64_t rank, const Group& group) {
      machines.enter(value.machine_of_rank[rank]);
      body(rank, group);
    });
  }
};

TEST_P(CopiesOnMachines, LieOnAnotherMachineWhateverTheNodeSize) {
  const MachinesCase& value = GetParam();
  for (const bool whole_parameters : {false, true}) {
    std::mutex mutex;
    std::map<std::string, std::vector<int64_t>> machines_of_range;
    run([&](int64_t rank, const Group& group) {
      NetTraining parts(group, ddp_options_of({"int8", {group->getSize(), value.node_size}}));
      const auto options = ShardOptions().copies(2).whole_parameters(whole_parameters);
      ShardedOptimizer sharded(*parts.adamw, parts.ddp.reducer(), options);
      for (int64_t step = 1; step <= 3; ++step) {
        compute_gradients(parts, step, {});
        sharded.step();
      }
      EXPECT_TRUE(same_on_all_ranks(group, parts.parameters()));
      if (whole_parameters) return;
      const std::lock_guard<std::mutex> lock(mutex);
      for (const pieces::Range& range : sharded.parts().held_ranges(parts.named())) {
        machines_of_range[pieces::describe(range)].push_back(value.machine_of_rank[rank]);
      }
    });
    for (const auto& [range, machines] : machines_of_range) {
      ASSERT_EQ(machines.size(), 2U) << range;
      EXPECT_NE(machines[0], machines[1]) << range;
    }
  }
}

TEST_P(CopiesOnMachines, AreHeldByRanksInTurn) {
  const MachinesCase& value = GetParam();
  run([&](int64_t /*rank*/, const Group& group) {
    const hooks::WireOptions wire = {.node_size = value.node_size};
    const auto average = [](auto /*rounding*/) { return std::vector<int64_t>(); };
    for (const bool whole_parameters : {false, true}) {
      const auto options = ShardOptions().copies(2).whole_parameters(whole_parameters);
      const sharding::HookShards shards = sharding::average_shards(group, {"int8", wire, average}, options);
      EXPECT_THAT(shards.copy_holders, ElementsAreArray(value.holders));
      for (size_t rank = 0; rank < shards.copy_holders.size(); ++rank) {
        const int64_t holder = shards.copy_holders[rank];
        EXPECT_NE(value.machine_of_rank[rank], value.machine_of_rank.at(holder)) << "rank " << rank;
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Layouts, CopiesOnMachines,
                         ::testing::Values(MachinesCase{"two_machines_of_two", {0, 0, 1, 1}, 1, {2, 3, 0, 1}},
                                           MachinesCase{"in_turn", {0, 1, 0, 1}, 1, {1, 0, 3, 2}},
                                           MachinesCase{"unequal_machines", {0, 0, 0, 1, 1}, 1, {3, 4, 3, 0, 1}},
                                           MachinesCase{"two_nodes_on_one", {0, 0, 0, 0, 1, 1}, 2, {4, 5, 4, 5, 0, 1}},
                                           MachinesCase{"three_machines", {0, 0, 1, 2}, 1, {2, 2, 3, 0}}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace narrowcast::testing
