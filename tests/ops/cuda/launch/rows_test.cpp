// Every element of every row is in one part, and parts begin at addresses for wide loads. Within a part, elements
// before, in and after the aligned packs are tested for all alignments of both sides.
#include "ops/cuda/launch/rows.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <vector>

#include "tests/ops/cuda/launch/rows_on_host.h"

namespace narrowcast::cuda {
namespace {

void expect_partition(const RowParts& parts) {
  int64_t next = 0;
  for (int64_t index = 0; index < parts.count(); ++index) {
    const RowPart part = parts.at(index);
    ASSERT_EQ(part.first, next);
    ASSERT_EQ(part.row, index / parts.per_row);
    ASSERT_GT(part.size, 0);
    ASSERT_EQ((part.first - part.row * parts.row_size) % 16, 0);
    next += part.size;
  }
  EXPECT_EQ(next, parts.rows * parts.row_size);
}

TEST(RowParts, CoverEveryElementOnce) {
  for (const int64_t rows : {1, 2, 5}) {
    for (const int64_t row_size : {1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 1000, 4097}) {
      for (const int64_t most : {16, 64, 4096}) {
        SCOPED_TRACE(::testing::Message() << rows << " x " << row_size << " in parts of " << most);
        const RowParts parts = share_rows(rows, row_size, most);
        EXPECT_LE(parts.part_size, most);
        expect_partition(parts);
      }
    }
  }
}

TEST(RowParts, AreAboutEquallyLong) {
  EXPECT_EQ(share_rows(1, 4100, 4096).at(0).size, 2064);
  EXPECT_EQ(share_rows(1, 4100, 4096).at(1).size, 2036);
}

TEST(RowParts, CountBeyondInt32) {
  const RowParts parts = share_rows(3, int64_t{1} << 40, 4096);
  EXPECT_EQ(parts.count(), 3 * (int64_t{1} << 28));
  EXPECT_EQ(parts.at(parts.count() - 1).first, 3 * (int64_t{1} << 40) - 4096);
  // Indices on both sides of 2^32, where another division is used.
  const RowParts more = share_rows(3, int64_t{1} << 45, 4096);
  for (const int64_t index : {(int64_t{1} << 32) - 1, int64_t{1} << 32, more.count() - 1}) {
    EXPECT_EQ(more.at(index).row, index / more.per_row);
    EXPECT_EQ(more.at(index).first, 4096 * index);
  }
}

TEST(RowParts, OfReductionsAreFewEvenOfLongRows) {
  for (const int64_t row_size : {int64_t{1}, int64_t{8193}, int64_t{1} << 25, (int64_t{1} << 32) + 7}) {
    const RowParts parts = share_rows_for_reduction(2, row_size);
    EXPECT_LE(parts.per_row, 4096);
    EXPECT_GE(parts.per_row * parts.part_size, row_size);
  }
}

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
