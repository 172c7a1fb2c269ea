#include "trainer/train/bench/kernel_rates.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <narrowcast/wire_format.h>
#include "tests/support/devices.h"

namespace narrowcast::bench {
namespace {

class KernelRatesTest : public test::DeviceTest {};

TEST_P(KernelRatesTest, CoverEveryFormat) {
  const KernelRates rates = measure_kernels({.elements = 4096, .turns = 2, .device = at::Device(GetParam(), 0)});
  EXPECT_EQ(rates.device, GetParam());
  EXPECT_GT(rates.memory, 0);
  ASSERT_EQ(rates.formats.size(), kWireFormats.size());
  for (size_t i = 0; i < kWireFormats.size(); ++i) {
    EXPECT_EQ(rates.formats[i].format, kWireFormats[i]);
    EXPECT_GT(rates.formats[i].encode, 0);
    EXPECT_GT(rates.formats[i].decode, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, KernelRatesTest, test::kDevices, test::name_of_case);

TEST(KernelRates, LeaveTheThreadsAsTheyWere) {
  const int before = at::get_num_threads();
  at::set_num_threads(3);
  measure_kernels({.elements = 1, .turns = 1});
  EXPECT_EQ(at::get_num_threads(), 3);
  at::set_num_threads(before);
}

}  // namespace
}  // namespace narrowcast::bench
