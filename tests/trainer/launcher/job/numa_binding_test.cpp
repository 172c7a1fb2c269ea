#include "trainer/launcher/job/numa_binding.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/error_message.h"

namespace narrowcast::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Bound = std::vector<std::vector<int64_t>>;

// A machine with `nodes` NUMA nodes of 8 processors, two nodes per socket. On each node, processors i and i + 4 are
// threads of one core, and two cores share a cache.
std::vector<Processor> machine(int64_t nodes) {
  std::vector<Processor> processors;
  for (int64_t number = 0; number < 8 * nodes; ++number) {
    const int64_t first = number / 8 * 8;
    const int64_t core = first + number % 4;
    processors.push_back({.number = number,
                          .node = number / 8,
                          .socket = number / 16,
                          .core = core,
                          .cache = first + number % 4 / 2 * 2});
  }
  return processors;
}

Bound bound(NumaBinding binding, int64_t workers, const NodeProcessors& node) {
  return bind_workers(binding, workers, node);
}

TEST(NumaBinding, HasTorchrunsModes) {
  EXPECT_EQ(parse_numa_binding("--f", "node"), NumaBinding::kNode);
  EXPECT_EQ(parse_numa_binding("--f", "socket"), NumaBinding::kSocket);
  EXPECT_EQ(parse_numa_binding("--f", "exclusive"), NumaBinding::kExclusive);
  EXPECT_EQ(parse_numa_binding("--f", "core-complex"), NumaBinding::kCoreComplex);
  for (const char* const text : {"", "none", "Node", "core_complex"}) {
    EXPECT_EQ(testing::error_message<c10::ValueError>([&] { parse_numa_binding("--f", text); }),
              std::string("--f=") + text + ": must be node, socket, exclusive or core-complex");
  }
}

TEST(NumaBinding, LeavesWorkersAloneUnlessAsked) {
  EXPECT_THAT(bound(NumaBinding::kNone, 2, {.usable = machine(2)}), ElementsAre(IsEmpty(), IsEmpty()));
}

TEST(NumaBinding, DividesWorkersWithoutGpusAmongTheNodesInOrder) {
  const Bound four = bound(NumaBinding::kNode, 4, {.usable = machine(2)});
  EXPECT_THAT(four[0], ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_EQ(four[1], four[0]);
  EXPECT_THAT(four[2], ElementsAre(8, 9, 10, 11, 12, 13, 14, 15));
  EXPECT_EQ(four[3], four[2]);
  EXPECT_EQ(bound(NumaBinding::kNode, 4, {.usable = machine(2), .nodes_of_gpus = {1}}), four)
      << "of too few GPUs none counts";
  const Bound one = bound(NumaBinding::kNode, 1, {.usable = machine(2)});
  EXPECT_EQ(one[0], four[0]);
}

TEST(NumaBinding, PutsAWorkerNearItsGpu) {
  const Bound two = bound(NumaBinding::kNode, 2, {.usable = machine(2), .nodes_of_gpus = {1, 0, 0}});
  EXPECT_EQ(two[0].front(), 8);
  EXPECT_EQ(two[1].front(), 0);
}

TEST(NumaBinding, GivesAllNodesOfASocket) {
  const Bound two = bound(NumaBinding::kSocket, 2, {.usable = machine(4)});
  EXPECT_EQ(two[0].size(), 16U);
  EXPECT_EQ(two[0].back(), 15);
  EXPECT_EQ(two[1].front(), 16);
  EXPECT_EQ(two[1].back(), 31);
}

TEST(NumaBinding, GivesEqualPartsOfTheCores) {
  const Bound three = bound(NumaBinding::kExclusive, 3, {.usable = machine(1)});
  EXPECT_THAT(three, ElementsAre(ElementsAre(0, 1, 4, 5), ElementsAre(2, 6), ElementsAre(3, 7)));
  // GPUs without a worker also get a part, as in torchrun.
  const Bound two = bound(NumaBinding::kExclusive, 2, {.usable = machine(2), .nodes_of_gpus = {1, 1, 1, 1}});
  EXPECT_THAT(two, ElementsAre(ElementsAre(8, 12), ElementsAre(9, 13)));
  EXPECT_EQ(testing::error_message<c10::ValueError>([] { bound(NumaBinding::kExclusive, 5, {.usable = machine(1)}); }),
            "--numa_binding=exclusive: local rank 0: NUMA node 0 has 4 usable cores for 5 workers or GPUs");
}

TEST(NumaBinding, GivesCoreComplexesInTurnTheLargestFirst) {
  std::vector<Processor> usable = machine(1);
  std::erase_if(usable, [](const Processor& processor) { return processor.number == 1; });
  const Bound three = bound(NumaBinding::kCoreComplex, 3, {.usable = usable});
  EXPECT_THAT(three, ElementsAre(ElementsAre(2, 3, 6, 7), ElementsAre(0, 4, 5), ElementsAre(2, 3, 6, 7)));
}

TEST(NumaBinding, NamesANodeWithoutProcessors) {
  EXPECT_EQ(testing::error_message<c10::ValueError>(
                [] { bound(NumaBinding::kNode, 1, {.usable = machine(1), .nodes_of_gpus = {1}}); }),
            "--numa_binding: local rank 0: NUMA node 1 has no processor that this process may use");
}

}  // namespace
}  // namespace narrowcast::launcher
