#include "trainer/base/program/reference_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/trainer/base/program/sample_program.h"

namespace narrowcast::program {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(ReferencePage, HasATablePerGroup) {
  const std::string page = reference_page(sample_description());
  EXPECT_THAT(page, HasSubstr("# Flags of sample\n\n"));
  EXPECT_THAT(page, HasSubstr("## Input\n\n| flag | value | default | meaning |\n| --- | --- | --- | --- |\n"
                              "| `--sample_data` | text |  | The file to read. |\n"));
  EXPECT_THAT(page, HasSubstr("| `--sample_rate` | number | `0.5` | The rate. |\n"));
  EXPECT_THAT(page, Not(HasSubstr("resumes")));
}

TEST(ReferencePage, SaysWhatAnotherValueMeansForATrainingThatResumes) {
  int64_t width = 8;
  Description description = sample_description();
  description.groups.push_back({"Model", {"sample_width"}});
  description.flags = {{.name = "sample_width",
                        .variable = variable(width),
                        .default_value = "8",
                        .help = "Of *.pt | a\\b.",
                        .values = "elements, at least 1",
                        .at_resume = "must be the same"}};
  const std::string page = reference_page(description);
  EXPECT_THAT(page,
              HasSubstr("| `--sample_width` | integer, elements, at least 1 | `8` | Of \\*.pt \\| a\\\\b. | must be "
                        "the same |\n"));
  EXPECT_THAT(page, HasSubstr("| `--sample_rate` | number | `0.5` | The rate. |  |\n"));
  EXPECT_EQ(CommandLine(description, {"--help=markdown"}).answer(), page);
  EXPECT_THAT(help_text(description), HasSubstr("  --sample_width (integer, elements, at least 1; default: 8)\n"));
}

TEST(CommandLine, SetsTheVariablesOfADescription) {
  int64_t width = 8;
  bool is_wide = true;
  Description description = sample_description();
  description.groups.push_back({"Model", {"sample_width", "sample_wide"}});
  description.flags = {{.name = "sample_width", .variable = variable(width)},
                       {.name = "sample_wide", .variable = variable(is_wide)}};
  const CommandLine line(description, {"--sample-width", "3", "--nosample_wide"});
  EXPECT_EQ(width, 3);
  EXPECT_FALSE(is_wide);
  EXPECT_TRUE(line.given("sample_width"));
  EXPECT_FALSE(line.given("sample_steps"));
}

}  // namespace
}  // namespace narrowcast::program
