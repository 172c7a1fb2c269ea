#include "trainer/train/reporting/table.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

namespace narrowcast::reporting {
namespace {

TEST(AlignedTable, AlignsEachColumnAsAsked) {
  EXPECT_EQ(aligned_table({{"hook", "ms", "result"}, {"allreduce", "221.05", "ok"}}, "lrl"),
            "hook           ms  result\n"
            "allreduce  221.05  ok\n");
}

TEST(AlignedTable, IsEmptyWithoutRows) { EXPECT_EQ(aligned_table({}, "lr"), ""); }

TEST(AlignedTable, RefusesRowsOfOtherLengths) { EXPECT_THROW(aligned_table({{"a", "b"}}, "l"), c10::ValueError); }

}  // namespace
}  // namespace narrowcast::reporting
