#include "trainer/train/bench/tables.h"

#include <gtest/gtest.h>

#include "tests/trainer/train/bench/small_results.h"

namespace narrowcast::bench {
namespace {

TEST(LinkText, SaysRateAndRoundTrip) {
  EXPECT_EQ(link_text({.gbit_per_second = 0.957, .message_bytes = 30'000'000, .round_trip_us = 81.6}),
            "Link: 0.96 Gbit/s from each rank to the next, all at once (messages of 30.0 MB); round trip 82 us.\n");
}

TEST(KernelTable, ComparesWithReading) {
  const KernelRates rates = {
      .memory_read = 20,
      .formats = {{WireFormat::kInt8B128, 18, 15}, {WireFormat::kFp8E4M3B32, 9, 10}},
  };
  EXPECT_EQ(kernel_table(rates),
            "Kernels, one thread, GB/s of float32; memory is read at 20.0 GB/s:\n"
            "format        encode  of reading  decode  of reading\n"
            "int8_b128       18.0         90%    15.0         75%\n"
            "fp8_e4m3_b32     9.0         45%    10.0         50%\n");
}

TEST(HookTable, HasALinePerHookAndCase) {
  HookTime small = four_of("int8", 0.5, 400);
  small.bucket_bytes = 64 << 10;
  const BenchResults results = {
      .given_gbit = 1,
      .hooks = {time_of("allreduce", 221.004, 26'214'400), time_of("bf16_compress", 110.5, 13'107'200), small}};
  EXPECT_EQ(hook_table(results),
            "hook           bucket  buckets      ms  x allreduce  x bf16_compress  sent per rank  of the link\n"
            "allreduce      25 MiB        1  221.00         1.00             0.50        26.2 MB          95%\n"
            "bf16_compress  25 MiB        1  110.50         2.00             1.00        13.1 MB          95%\n"
            "int8           64 KiB        4    0.50            -                -          400 B           1%\n");
}

TEST(HookTable, HasADashWithoutALink) {
  EXPECT_EQ(hook_table({.hooks = {time_of("allreduce", 1, 1)}}),
            "hook       bucket  buckets    ms  x allreduce  x bf16_compress  sent per rank  of the link\n"
            "allreduce  25 MiB        1  1.00         1.00                -            1 B            -\n");
}

}  // namespace
}  // namespace narrowcast::bench
