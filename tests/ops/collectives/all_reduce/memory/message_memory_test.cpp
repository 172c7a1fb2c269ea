#include "ops/collectives/all_reduce/memory/message_memory.h"

#include <gtest/gtest.h>

#include <memory>

#include "tests/support/ranks.h"

namespace narrowcast::collectives {
namespace {

class MessageBuffer : public ::testing::TestWithParam<int64_t> {};

TEST_P(MessageBuffer, HasTheSizeAskedForAndIsAligned) {
  const int64_t bytes = GetParam();
  const at::Tensor buffer = allocate_message_buffer(bytes);
  EXPECT_EQ(buffer.scalar_type(), at::kByte);
  EXPECT_EQ(buffer.sizes(), at::IntArrayRef({bytes}));
  EXPECT_TRUE(buffer.is_contiguous());
  const auto address = reinterpret_cast<uintptr_t>(buffer.const_data_ptr());
  EXPECT_EQ(address % (bytes >= 1 << 21 ? 1 << 21 : 64), 0) << "the start of a huge page";
  buffer.fill_(7);  // Writes all of it; AddressSanitizer checks the ends.
  EXPECT_EQ(buffer.sum().item<int64_t>(), 7 * bytes);
}

INSTANTIATE_TEST_SUITE_P(Sizes, MessageBuffer,
                         ::testing::Values(0, 1, 127, 1'000'003, (1 << 21) - 1, 1 << 21, (1 << 21) + 1, 6'553'608));

TEST(MessageMemory, TakesItsBuffersInTurn) {
  MessageMemory memory(2);
  const MessageMemory::Buffer first = memory.take(100);
  const MessageMemory::Buffer second = memory.take(50);
  EXPECT_NE(first.place, second.place);
  EXPECT_GE(second.bytes.numel(), 50);
  EXPECT_TRUE(memory.take(100).bytes.is_same(first.bytes));
  EXPECT_GE(memory.take(200).bytes.numel(), 200) << "a buffer that is too small is replaced";
}

TEST(MessageMemory, IsOneForAGroupWhileItIsUsed) {
  testing::run_ranks(2, [](int64_t /*rank*/, const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
    std::shared_ptr<MessageMemory> memory = MessageMemory::of(group);
    EXPECT_EQ(MessageMemory::of(group), memory);
    const std::weak_ptr<MessageMemory> former = memory;
    memory.reset();
    EXPECT_TRUE(former.expired());
    EXPECT_NE(MessageMemory::of(group), nullptr);
  });
}

TEST(MessageOffsets, PlacesMessagesOneAfterTheOther) {
  MessageOffsets offsets;
  EXPECT_EQ(offsets.add(1), 0);
  EXPECT_EQ(offsets.add(0), 1);
  EXPECT_EQ(offsets.add(65), 2);
  MessageMemory memory(/*users=*/1);
  const std::vector<at::Tensor>& messages = offsets.place_in(memory);
  ASSERT_EQ(messages.size(), 3);
  EXPECT_EQ(messages[0].numel(), 1);
  EXPECT_EQ(messages[1].numel(), 0);
  EXPECT_EQ(messages[2].numel(), 65);
  const at::Tensor buffer = memory.take(0).bytes;
  EXPECT_EQ(buffer.numel(), 64 + 128);
  EXPECT_EQ(messages[0].const_data_ptr<uint8_t>(), buffer.const_data_ptr<uint8_t>());
  EXPECT_EQ(messages[2].const_data_ptr<uint8_t>(), buffer.const_data_ptr<uint8_t>() + 64);
}

}  // namespace
}  // namespace narrowcast::collectives
