// narrowcast-train with --static_graph: resuming, and accumulation.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "tests/programs/train_commands.h"
#include "tests/support/digits.h"
#include "tests/support/temporary_folder.h"

namespace narrowcast::testing {
namespace {

namespace fs = std::filesystem;

class NarrowcastTrainStaticGraphTest : public ::testing::Test {
 protected:
  NarrowcastTrainStaticGraphTest() { write_digits(folder); }
  // Four hidden layers of one size, so that neighbouring buckets are equal.
  Words flags(const Words& more) const {
    return Words{"--model=mlp", "--data=" + folder.path().string(), "--layers=4", "--hidden=64", "--batch_size=20"} +
           more;
  }
  std::string model_of(const std::string& run) const { return files::read_file(folder / (run + "/model.safetensors")); }
  const TemporaryFolder folder;
};

TEST_F(NarrowcastTrainStaticGraphTest, ResumesToTheBit) {
  const Words hooks[] = {{},  // Its choice depends on measurements.
                         {"--hook=int8", "--node_size=1", "--error_feedback"},
                         {"--hook=power_sgd", "--node_size=1", "--power_sgd_start=2"}};
  for (const Words& hook : hooks) {
    const std::string run = folder / "run";
    const Words words = flags(hook + Words{"--static_graph", "--bucket_cap_mb=0.01", "--steps=10",
                                           "--checkpoint_every=5", "--keep_checkpoints=0", "--resume",
                                           "--output_dir=" + run, "--checkpoint_dir=" + run + "/checkpoints"});
    fs::remove_all(run);
    const ProgramEnd whole = train_on(2, words);
    ASSERT_EQ(whole.exit_code, 0) << whole.errors;
    const std::string expected = model_of("run");
    fs::remove_all(run + "/checkpoints/step-00000010");
    const ProgramEnd resumed = train_on(2, words);
    ASSERT_EQ(resumed.exit_code, 0) << resumed.errors;
    EXPECT_THAT(resumed.errors, ::testing::HasSubstr("step-00000005, step 5 of 10"));
    EXPECT_TRUE(hook.empty() || model_of("run") == expected) << (hook.empty() ? "auto" : hook[0]);
  }
}

// The mean of two ranks is exact, whichever buckets are used.
TEST_F(NarrowcastTrainStaticGraphTest, AccumulatesAsWithoutIt) {
  const Words common = {"--hook=none", "--accumulation_steps=2", "--bucket_cap_mb=0.01", "--steps=6", "--overwrite"};
  const ProgramEnd without = train_on(2, flags(common + Words{"--output_dir=" + folder / "without"}));
  ASSERT_EQ(without.exit_code, 0) << without.errors;
  const ProgramEnd with = train_on(2, flags(common + Words{"--static_graph", "--output_dir=" + folder / "with"}));
  ASSERT_EQ(with.exit_code, 0) << with.errors;
  EXPECT_TRUE(model_of("with") == model_of("without"));
}

}  // namespace
}  // namespace narrowcast::testing
