// Every element of every row is in one part, and parts begin where wide loads can.
#include "ops/cuda/rows/row_parts.h"

#include <gtest/gtest.h>

#include "ops/cuda/rows/reduce_share.h"

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
}

TEST(RowParts, OfReductionsAreFewEvenOfLongRows) {
  for (const int64_t row_size : {int64_t{1}, int64_t{8193}, int64_t{1} << 25, (int64_t{1} << 32) + 7}) {
    const RowParts parts = share_rows_for_reduction(2, row_size);
    EXPECT_LE(parts.per_row, 4096);
    EXPECT_GE(parts.per_row * parts.part_size, row_size);
  }
}

}  // namespace
}  // namespace narrowcast::cuda
