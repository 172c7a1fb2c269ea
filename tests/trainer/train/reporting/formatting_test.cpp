#include "trainer/train/reporting/formatting.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

namespace narrowcast::reporting {
namespace {

using Texts = std::vector<std::pair<double, std::string>>;

// Each number and the text that `format` returns for it.
void expect_texts(std::string (*format)(double), const Texts& expected) {
  for (const auto& [number, text] : expected) {
    EXPECT_EQ(format(number), text) << number;
  }
}

TEST(FormatCount, KeepsThreeDigits) {
  expect_texts(
      format_count,
      {{0, "0"}, {7, "7"}, {999, "999"}, {1000, "1.00k"}, {41234, "41.2k"}, {412340, "412k"}, {1.5e6, "1.50M"}});
}

TEST(FormatCount, RoundsIntoTheNextPrefix) {
  expect_texts(format_count, {{999.6, "1.00k"}, {9.999e3, "10.0k"}, {99.99e3, "100k"}, {999999, "1.00M"}});
}

TEST(FormatCount, HasALargestPrefix) { expect_texts(format_count, {{5e18, "5000P"}}); }

TEST(FormatBytes, NamesTheUnit) { expect_texts(format_bytes, {{512, "512 B"}, {26214400, "26.2 MB"}}); }

TEST(FormatLoss, KeepsFourDigitsOfWhatIsSmall) {
  expect_texts(format_loss, {{2.302585, "2.3026"},
                             {0, "0.0000"},
                             {-1.25, "-1.2500"},
                             {0.1, "0.1000"},
                             {0.0999999, "0.1000"},
                             {0.0412345, "0.04123"},
                             {-0.0412345, "-0.04123"},
                             {1.2e-4, "0.0001200"},
                             {9.99999e-5, "0.0001000"},
                             {4.12e-5, "4.120e-05"},
                             {1e-120, "1.000e-120"}});
}

TEST(FormatAccuracy, HasFourDecimals) { expect_texts(format_accuracy, {{1, "1.0000"}, {0.04, "0.0400"}}); }

TEST(FormatDuration, PicksTwoUnits) {
  expect_texts(format_duration, {{0, "0.0 s"},
                                 {9.94, "9.9 s"},
                                 {9.96, "10 s"},
                                 {59.4, "59 s"},
                                 {59.6, "1 min 00 s"},
                                 {185, "3 min 05 s"},
                                 {3599.4, "59 min 59 s"},
                                 {7169, "1 h 59 min"},
                                 {7170, "2 h 00 min"},
                                 {7625, "2 h 07 min"}});
}

TEST(AlignedTable, AlignsEachColumnAsAsked) {
  EXPECT_EQ(aligned_table({{"hook", "ms", "result"}, {"allreduce", "221.05", "ok"}}, "lrl"),
            "hook           ms  result\n"
            "allreduce  221.05  ok\n");
}

TEST(AlignedTable, IsEmptyWithoutRows) { EXPECT_EQ(aligned_table({}, "lr"), ""); }

TEST(AlignedTable, RefusesRowsOfOtherLengths) { EXPECT_THROW(aligned_table({{"a", "b"}}, "l"), c10::ValueError); }

}  // namespace
TEST(PlanText, AlignsNamesAndValues) {
  EXPECT_EQ(plan_text({{"a", 1}, {"longer", "text"}}), "a       1\nlonger  text\n");
}

}  // namespace narrowcast::reporting
