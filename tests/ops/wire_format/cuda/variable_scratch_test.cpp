// The chunks of a variable message's kernels, and their search for its step.
#include <gtest/gtest.h>

#include <cstdint>

#include "ops/codec/variable_headers.h"
#include "tests/ops/wire_format/cuda/variable_kernels_on_host.h"

namespace narrowcast::cuda_on_host {
namespace {

TEST(CudaVariableChunks, HaveAllTiles) {
  for (const int64_t n : {int64_t{1}, int64_t{1024}, int64_t{1} << 16, (int64_t{1} << 16) + 1, (int64_t{1} << 25) + 7,
                          (int64_t{1} << 40) + 1025}) {
    SCOPED_TRACE(n);
    const cuda::VariableChunks chunks = cuda::variable_chunks(n);
    EXPECT_EQ(chunks.tiles, (n + 1023) / 1024);
    EXPECT_LE(chunks.count, cuda::kMostChunks);
    EXPECT_EQ(chunks.end(chunks.count - 1), chunks.tiles);
    EXPECT_LT(chunks.begin(chunks.count - 1), chunks.tiles);
  }
}

// Below the range in which a search begins, the largest number has no code. With the greatest step of the range all
// blocks are faint or zeros.
TEST(CudaVariableSearch, BeginsWithAllThatIsPossible) {
  using codec::wire::StepCodes;
  for (uint32_t number = 0; number <= codec::wire::kGreatestMagnitudeBits >> 16; ++number) {
    const cuda::StepRange range = cuda::StepRange::of(number << 16);
    const codec::wire::BlockExtent extent{number << 16 | number};
    const auto over = [&](const StepCodes& codes) { return codec::float_of_bits(number << 16) * codes.inverse; };
    ASSERT_GE(range.low, codec::wire::kLeastStep);
    ASSERT_LE(range.high, codec::wire::kGreatestStep);
    ASSERT_LE(range.low, range.high);
    for (const bool stochastic : {false, true}) {
      const StepCodes last = StepCodes::of(static_cast<uint16_t>(range.high), {.stochastic = stochastic});
      ASSERT_TRUE(last.has_code(over(last))) << number;
      ASSERT_LE(last.width(extent), codec::wire::kFaintWidth) << number;
      const StepCodes below = StepCodes::of(static_cast<uint16_t>(range.low - 1), {.stochastic = stochastic});
      ASSERT_TRUE(range.low == codec::wire::kLeastStep || !below.has_code(over(below))) << number;
    }
  }
}

// A search finds the first step that fits, at any place.
TEST(CudaVariableSearch, FindsEveryStep) {
  for (const uint32_t number : {0U, 0x0D00U, 0x1400U, 0x3F80U, 0x7F00U, 0x7F7DU}) {
    const cuda::StepRange first = cuda::StepRange::of(number << 16);
    for (uint32_t least = first.low; least <= first.high; ++least) {
      cuda::StepRange range = first;
      for (int round = 0; round < cuda::kSearchRounds; ++round) {
        int unfit = 0;
        for (int i = 0; i < cuda::kTriedSteps; ++i) unfit += range.tried(i) < least ? 1 : 0;
        range = range.narrowed(unfit);
      }
      ASSERT_EQ(range.low, least);
      ASSERT_EQ(range.high, least);
    }
  }
}

}  // namespace
}  // namespace narrowcast::cuda_on_host
