#include "trainer/train/bench/kernel_rates.h"

#include <gtest/gtest.h>

namespace narrowcast::bench {
namespace {

TEST(KernelRates, CoverEveryFormat) {
  const KernelRates rates = measure_kernels({.elements = 4096, .turns = 2});
  EXPECT_GT(rates.memory_read, 0);
  ASSERT_EQ(rates.formats.size(), kWireFormats.size());
  for (size_t i = 0; i < kWireFormats.size(); ++i) {
    EXPECT_EQ(rates.formats[i].format, kWireFormats[i]);
    EXPECT_GT(rates.formats[i].encode, 0);
    EXPECT_GT(rates.formats[i].decode, 0);
  }
}

}  // namespace
}  // namespace narrowcast::bench
