#include "ops/engine/message_buffer.h"

#include <gtest/gtest.h>

namespace narrowcast::engine {
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
  buffer.fill_(7);  // Writes all of it; AddressSanitizer watches the ends.
  EXPECT_EQ(buffer.sum().item<int64_t>(), 7 * bytes);
}

INSTANTIATE_TEST_SUITE_P(Sizes, MessageBuffer,
                         ::testing::Values(0, 1, 127, 1'000'003, (1 << 21) - 1, 1 << 21, (1 << 21) + 1, 6'553'608));

}  // namespace
}  // namespace narrowcast::engine
