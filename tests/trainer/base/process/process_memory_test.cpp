#include "trainer/base/process/process_memory.h"

#include <gtest/gtest.h>

#include <vector>

namespace narrowcast::program {
namespace {

TEST(PeakMemory, ContainsMemoryThatWasFreed) {
  const int64_t before = peak_memory_bytes();
  EXPECT_GT(before, int64_t{1} << 20);
  const int64_t bytes = before + (int64_t{8} << 20);  // More than may be resident by now.
  EXPECT_EQ(std::vector<char>(bytes, 'x').back(), 'x');
  EXPECT_GE(peak_memory_bytes(), bytes);
  EXPECT_LT(peak_memory_bytes(), 4 * bytes) << "another unit";
}

}  // namespace
}  // namespace narrowcast::program
