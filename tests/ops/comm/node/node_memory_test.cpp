#include "ops/comm/node/node_memory.h"
#include "ops/common/file_descriptor.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "ops/comm/node/shared_memory.h"

namespace narrowcast::node {
namespace {

constexpr int64_t kBytes = int64_t{1} << 20;

// The views of two processes: ranks 3 and 5 of the group.
class NodeMemoryTest : public ::testing::Test {
 protected:
  NodeMemoryTest() {
    const SocketName name = random_socket_name();
    const FileDescriptor listening = listen_locally(name);
    FileDescriptor to_first = connect_locally(name, 5);
    SharedMemory memory = SharedMemory::create(kBytes);
    SharedMemory same = SharedMemory::open(FileDescriptor(::dup(memory.descriptor().get())));
    descriptor_ = FileDescriptor(::dup(memory.descriptor().get()));
    first_ = make(std::move(memory), 0, std::move(accept_locally(listening)->connection));
    second_ = make(std::move(same), 1, std::move(to_first));
  }
  static std::unique_ptr<NodeMemory> make(SharedMemory memory, int64_t own, FileDescriptor other) {
    std::vector<FileDescriptor> connections(2);
    connections[1 - own] = std::move(other);
    return std::make_unique<NodeMemory>(std::move(memory), std::vector<int64_t>{3, 5}, own, std::move(connections));
  }
  // Bytes of the memory that are resident.
  int64_t resident() const {
    struct stat status {};
    EXPECT_EQ(::fstat(descriptor_.get(), &status), 0);
    return status.st_blocks * 512;
  }
  FileDescriptor descriptor_;
  std::unique_ptr<NodeMemory> first_;
  std::unique_ptr<NodeMemory> second_;
};

TEST_F(NodeMemoryTest, RanksSeeEachOthersBuffersAndMoments) {
  EXPECT_EQ(second_->rank_of(1), 5);
  const SlotUse use = first_->take_slot(0);
  second_->take_slot(0);
  first_->staging_buffer(use, 0, 1000)[999] = 1.5F;
  EXPECT_FALSE(second_->has_reached(Phase::kStaged, use, 0));
  first_->reach(Phase::kStaged, use);
  EXPECT_TRUE(second_->has_reached(Phase::kStaged, use, 0));
  EXPECT_FALSE(second_->has_reached(Phase::kPublished, use, 0));
  EXPECT_FALSE(second_->all_have_reached(Phase::kStaged, use));
  EXPECT_EQ(second_->staging_buffer(use, 0, 1000)[999], 1.5F);
}

TEST_F(NodeMemoryTest, SlotsTakeTurns) {
  const SlotUse a = first_->take_slot(0);
  const SlotUse b = first_->take_slot(0);
  const SlotUse c = first_->take_slot(0);
  const SlotUse other_array = first_->take_slot(1);
  EXPECT_NE(a.slot, b.slot);
  EXPECT_EQ(a.slot, c.slot);
  EXPECT_EQ(c.number, a.number + 1);
  EXPECT_TRUE(first_->all_have_reached(Phase::kFinished, NodeMemory::before(a))) << "nobody has used it before";
  EXPECT_FALSE(first_->all_have_reached(Phase::kFinished, NodeMemory::before(c)));
  const auto* const buffer = first_->staging_buffer(a, 0, 100);
  EXPECT_NE(buffer, first_->staging_buffer(a, 1, 100));
  EXPECT_NE(buffer, first_->staging_buffer(other_array, 0, 100));
}

TEST_F(NodeMemoryTest, AReturnedSlotIsTakenAgain) {
  for (int time = 0; time < 3; ++time) {
    for (int64_t other = 0; other < time; ++other) {  // Each slot is returned, the first time as well.
      for (const auto& memory : {first_.get(), second_.get()}) memory->reach(Phase::kFinished, memory->take_slot(0));
    }
    const SlotUse use = first_->take_slot(0);
    first_->choose_buffer(use, 100);
    const auto* const buffer = first_->staging_buffer(use, 0, 100);
    first_->return_slot(use);
    EXPECT_TRUE(second_->has_reached(Phase::kFinished, NodeMemory::before(use), 0));
    EXPECT_EQ(first_->take_slot(0), use);
    first_->choose_buffer(use, 100);
    EXPECT_EQ(first_->staging_buffer(use, 0, 100), buffer) << "nobody uses it";
    first_->return_slot(use);
  }
}

TEST_F(NodeMemoryTest, ABufferIsTakenAgainOnceAllHaveFinished) {
  const SlotUse a = first_->take_slot(0);
  first_->choose_buffer(a, 100);
  const auto* const buffer = first_->staging_buffer(a, 0, 100);
  const SlotUse b = first_->take_slot(0);
  first_->choose_buffer(b, 100);
  EXPECT_NE(first_->staging_buffer(b, 0, 100), buffer) << "two are in flight";
  first_->reach(Phase::kFinished, a);
  second_->reach(Phase::kFinished, a);
  const SlotUse c = first_->take_slot(0);
  first_->choose_buffer(c, 100);
  EXPECT_EQ(first_->staging_buffer(c, 0, 100), buffer);
  EXPECT_EQ(second_->staging_buffer(c, 0, 100), buffer + (second_->staging_buffer(a, 0, 100) - buffer));
  first_->reach(Phase::kFinished, b);
  first_->reach(Phase::kFinished, c);
  second_->reach(Phase::kFinished, b);
  const SlotUse d = first_->take_slot(0);
  first_->choose_buffer(d, 100);
  EXPECT_NE(first_->staging_buffer(d, 0, 100), buffer) << "the other one still reads it";
  second_->reach(Phase::kFinished, c);
  const SlotUse e = first_->take_slot(0);
  first_->choose_buffer(e, 100);
  EXPECT_EQ(first_->staging_buffer(e, 0, 100), buffer);
}

TEST_F(NodeMemoryTest, ABufferIsFreeHoweverLongItIsSinceItWasTaken) {
  const auto take = [&] {
    const SlotUse use = first_->take_slot(0);
    first_->choose_buffer(use, 100);
    return use;
  };
  const auto finish = [&](const SlotUse& use) {
    first_->reach(Phase::kFinished, use);
    second_->reach(Phase::kFinished, use);
  };
  const SlotUse first = take();
  finish(take());  // In the other buffer.
  finish(first);
  for (int uses = 0; uses < 100'000; ++uses) {
    finish(take());
  }
  const SlotUse busy = take();
  const auto* const buffer = first_->staging_buffer(busy, 0, 100);
  EXPECT_NE(first_->staging_buffer(take(), 0, 100), buffer);
}

// The bucket of a first step is as large as all gradients; later buckets are smaller.
TEST_F(NodeMemoryTest, GivesBackWhatArraysNoLongerNeed) {
  constexpr int64_t kLarge = 20'000;
  constexpr int64_t kSmall = 3'000;
  const auto exchange = [&](int64_t numel) {
    const SlotUse use = first_->take_slot(0);
    first_->choose_buffer(use, numel);
    float* const buffer = first_->staging_buffer(use, 0, numel);
    std::fill(buffer, buffer + numel, 1.0F);
    first_->reach(Phase::kFinished, use);
    second_->reach(Phase::kFinished, use);
  };
  exchange(kLarge);
  const int64_t most = resident();
  EXPECT_GE(most, kLarge * 4);
  for (int use = 0; use < 400; ++use) {
    exchange(kSmall);
  }
  EXPECT_LE(resident(), most - (kLarge - kSmall) * 4 + 2 * 4096);
  EXPECT_GE(resident(), kSmall * 4);
}

TEST_F(NodeMemoryTest, MomentsAreReachedInSteps) {
  for (int64_t number = 0; number < 3; ++number) {
    const SlotUse use = first_->take_slot(0);
    EXPECT_FALSE(second_->has_reached(Phase::kPublished, use, 0, 1));
    first_->reach(Phase::kPublished, use, 2);
    EXPECT_TRUE(second_->has_reached(Phase::kPublished, use, 0, 1));
    EXPECT_TRUE(second_->has_reached(Phase::kPublished, use, 0, 2));
    EXPECT_FALSE(second_->has_reached(Phase::kPublished, use, 0, 3));
    EXPECT_FALSE(second_->has_reached(Phase::kPublished, use, 0));
    first_->reach(Phase::kPublished, use);
    EXPECT_TRUE(second_->has_reached(Phase::kPublished, use, 0));
  }
}

// While arrays are small, an owner without elements publishes nothing. Then a large array follows.
TEST_F(NodeMemoryTest, AMomentSkippedInEveryTurnNeverSeemsReachedEarly) {
  for (int64_t number = 0; number < 2 * 100'000; ++number) {  // With two slots, each has 100,000 uses.
    const SlotUse use = first_->take_slot(0);
    ASSERT_EQ(second_->take_slot(0).number, use.number);
    for (const Phase phase : {Phase::kStaged, Phase::kPublished, Phase::kFinished}) {
      ASSERT_FALSE(second_->has_reached(phase, use, 0, 1)) << "phase " << static_cast<int>(phase) << ", " << number;
    }
    first_->reach(Phase::kFinished, use);
    second_->reach(Phase::kFinished, use);
  }
}

TEST_F(NodeMemoryTest, WhoHasFinishedHasReachedEveryMoment) {
  const SlotUse use = first_->take_slot(1);
  first_->reach(Phase::kPublished, use, 7);
  first_->reach(Phase::kFinished, use);
  for (const Phase phase : {Phase::kStaged, Phase::kPublished, Phase::kFinished}) {
    EXPECT_TRUE(second_->has_reached(phase, use, 0)) << static_cast<int>(phase);
    EXPECT_FALSE(second_->has_reached(phase, {use.array, use.slot, use.number + 1}, 0, 1));
  }
}

TEST_F(NodeMemoryTest, RefusesWhatItCannotHold) {
  const SlotUse use = first_->take_slot(0);
  // One page of words, then whole pages for two buffers of two arrays of two ranks.
  constexpr int64_t kPage = 4096;
  const int64_t most = (kBytes - kPage) / 8 / kPage * kPage / 4;
  EXPECT_NO_THROW(first_->staging_buffer(use, 1, most));
  EXPECT_THROW(first_->staging_buffer(use, 1, most + 1), c10::ValueError);
}

TEST_F(NodeMemoryTest, NumbersGoRound) {
  SlotUse use = first_->take_slot(0);
  for (const uint32_t number : {1U, 0x7FFFU, 0xFFFEU, 0x10005U}) {
    use.number = number;
    EXPECT_FALSE(first_->has_reached(Phase::kFinished, use, 0)) << number;
    first_->reach(Phase::kFinished, use);
    EXPECT_TRUE(second_->has_reached(Phase::kFinished, use, 0)) << number;
  }
}

}  // namespace
}  // namespace narrowcast::node
