// Elements before, in and after the aligned packs, for all alignments of both sides.
#include "ops/cuda/rows/convert_part.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <vector>

#include "ops/cuda/rows/visit_part.h"
#include "tests/ops/cuda/rows/run_on_host.h"

namespace narrowcast::cuda {
namespace {

// Each lane writes its own share and nothing else; `in` holds 1, 2, 3, ...
template <class In, class Out>
void expect_converts(int n, int in_offset, int out_offset, int team) {
  alignas(16) In in[1200];
  alignas(16) Out out[1200] = {};
  std::iota(std::begin(in), std::end(in), In{1});
  int calls = 0;
  for (int rank = 0; rank < team; ++rank) {
    convert_part<kBatch>(in + in_offset, n, out + out_offset, {rank, team}, [&calls](In value) {
      ++calls;
      return static_cast<Out>(value + 3);
    });
  }
  EXPECT_EQ(calls, n);
  for (int i = 0; i < 1200; ++i) {
    const bool inside = i >= out_offset && i < out_offset + n;
    ASSERT_EQ(out[i], inside ? static_cast<Out>(in[i - out_offset + in_offset] + 3) : Out{0}) << i;
  }
}

template <class In, class Out>
void expect_converts_any_alignment() {
  for (const int n : {0, 1, 5, 16, 63, 64, 1100}) {
    for (int in_offset = 0; in_offset < 16; in_offset += 3) {
      for (const int out_offset : {0, 1, 8, 15}) {
        SCOPED_TRACE(::testing::Message() << n << " elements from " << in_offset << " to " << out_offset);
        for (const int team : test::kTeams) expect_converts<In, Out>(n, in_offset, out_offset, team);
      }
    }
  }
}

TEST(ConvertPart, NarrowsFromAnyAlignmentToAnyOther) { expect_converts_any_alignment<uint32_t, uint8_t>(); }
TEST(ConvertPart, NarrowsTheWidest) { expect_converts_any_alignment<uint64_t, uint16_t>(); }
TEST(ConvertPart, WidensFromAnyAlignmentToAnyOther) { expect_converts_any_alignment<uint8_t, uint32_t>(); }
TEST(ConvertPart, KeepsTheWidth) { expect_converts_any_alignment<uint16_t, uint16_t>(); }

TEST(VisitPart, ShowsEachElementToOneLane) {
  alignas(16) uint16_t x[1200];
  std::iota(std::begin(x), std::end(x), uint16_t{0});
  for (const int team : test::kTeams) {
    for (const int n : {0, 1, 7, 8, 9, 255, 1100}) {
      for (int offset = 0; offset < 9; ++offset) {
        std::vector<int> seen(static_cast<size_t>(n));
        for (int rank = 0; rank < team; ++rank) {
          visit_part<4>(x + offset, n, {rank, team}, [&](int i, uint16_t value) {
            EXPECT_EQ(value, offset + i);
            ++seen[static_cast<size_t>(i)];
          });
        }
        EXPECT_EQ(seen, std::vector<int>(static_cast<size_t>(n), 1)) << n << " from " << offset;
      }
    }
  }
}

}  // namespace
}  // namespace narrowcast::cuda
