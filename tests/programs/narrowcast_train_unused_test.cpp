// narrowcast-train with modules that do not use all parameters in every step.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/programs/train_commands.h"
#include "tests/support/digits.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/trained_modules.h"

namespace narrowcast::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class NarrowcastTrainUnusedTest : public ::testing::Test {
 protected:
  NarrowcastTrainUnusedTest() {
    write_digits(folder);
    branching_digit_net().save(folder / "branching.pt");
    leftover_digit_net().save(folder / "leftover.pt");
  }
  Words flags(const std::string& module, const Words& more = {}) const {
    return Words{"--model=" + folder / module, "--data=" + folder.path().string(), "--loss=cross_entropy",
                 "--batch_size=20", "--steps=12"} +
           more;
  }
  const TemporaryFolder folder;
};

TEST_F(NarrowcastTrainUnusedTest, TrainsLayersThatOnlySomeBatchesUse) {
  const Words found = {"--find_unused_parameters"};
  const ProgramEnd alone = train_alone(flags("branching.pt", found));
  EXPECT_EQ(alone.exit_code, 0) << alone.errors;
  // tests/trainer/ddp/reducer/unused_parameters_test.cpp has every hook.
  for (const Words& more :
       {Words{"--hook=int8", "--node_size=1", "--error_feedback", "--gradient_as_bucket_view"},
        Words{"--hook=power_sgd", "--power_sgd_start=2", "--bucket_cap_mb=0.001", "--accumulation_steps=2"}}) {
    const ProgramEnd end = train_on(2, flags("branching.pt", found + more));
    EXPECT_EQ(end.exit_code, 0) << more[0] << ": " << end.errors;
    EXPECT_THAT(end.output, HasSubstr("identical on all ranks")) << more[0];
  }
}

TEST_F(NarrowcastTrainUnusedTest, NamesThoseThatNoStepUsesBeforeRanksMeet) {
  const std::string line =
      "leftover.pt: the loss of the first batch does not depend on parameters 'leftover1', 'leftover2', 'leftover3', "
      "'leftover4', 'leftover5' and 2 more: if the module is meant to leave parameters unused, set "
      "--find_unused_parameters\n";
  for (const Words& more : {Words{}, Words{"--dry_run"}}) {
    const ProgramEnd end = train_alone(flags("leftover.pt", more));
    EXPECT_EQ(end.exit_code, 2);
    EXPECT_THAT(end.errors, HasSubstr(line));
    EXPECT_EQ(count_of("\n", end.errors), 1) << end.errors;
  }
  const ProgramEnd end = train_on(2, flags("leftover.pt"));
  EXPECT_EQ(end.exit_code, 2);
  EXPECT_THAT(end.errors, HasSubstr(line));
}

TEST_F(NarrowcastTrainUnusedTest, TrainsThoseThatNoStepUsesWhereTheyAreFound) {
  for (const char* const found : {"--find_unused_parameters", "--static_graph"}) {
    const ProgramEnd dry = train_alone(flags("leftover.pt", {found, "--dry_run"}));
    EXPECT_EQ(dry.exit_code, 0) << found << ": " << dry.errors;
    const ProgramEnd end = train_on(2, flags("leftover.pt", {found, "--hook=int8"}));
    EXPECT_EQ(end.exit_code, 0) << found << ": " << end.errors;
  }
}

}  // namespace
}  // namespace narrowcast::testing
