// narrowcast-train --verify_gradients with real processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include <narrowcast/hooks.h>
#include "tests/programs/train_commands.h"
#include "tests/support/temporary_folder.h"
#include "trainer/train/files/safetensors.h"

namespace narrowcast::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const Words kReferenceTask = {"--model=ddp_comm_hook_task", "--verify_gradients"};

TEST(NarrowcastTrainVerify, ReferenceTaskPassesOnTwoRanks) {
  const TemporaryFolder folder;
  const ProgramEnd end = train_on(2, kReferenceTask + Words{"--dump_gradients=" + folder / "dump"});
  EXPECT_EQ(end.exit_code, 0) << end.output << end.errors;
  EXPECT_THAT(end.output, AllOf(HasSubstr("is_last"), Not(HasSubstr("FAIL"))));
  // One for each hook, and is_last.
  EXPECT_EQ(count_of("pass\n", end.output), static_cast<int>(hooks::comm_hook_names().size()) + 1);
  for (const std::string& hook : hooks::comm_hook_names()) {
    for (const char* rank : {"0", "1"}) {
      const auto dump = files::read_safetensors(folder / ("dump/" + hook + ".rank" + rank + ".safetensors"));
      EXPECT_EQ(dump.tensors.at("t0.p").sizes(), at::IntArrayRef({40, 20})) << hook;
    }
  }
}

TEST(NarrowcastTrainVerify, TooTightAToleranceOfTheChosenHookFailsWithExitCodeOne) {
  const ProgramEnd end = train_on(2, kReferenceTask + Words{"--hook=bf16_compress", "--tolerance_scale=0.01"});
  EXPECT_EQ(end.exit_code, 1);
  EXPECT_THAT(end.output, AllOf(HasSubstr("FAIL: tolerance"), HasSubstr("none"), HasSubstr("bf16_compress"),
                                Not(HasSubstr("allreduce"))));
}

TEST(NarrowcastTrainVerify, GptPassesOnThreeRanks) {
  const ProgramEnd end = train_on(3, {"--verify_gradients", "--layers=1", "--heads=2", "--width=32", "--context=16",
                                      "--batch_size=6", "--bucket_cap_mb=0.05"});
  EXPECT_EQ(end.exit_code, 0) << end.output << end.errors;
  EXPECT_EQ(count_of("pass\n", end.output), static_cast<int>(hooks::comm_hook_names().size()));
}

// tests/trainer/train/verification/verify_gradients_test.cpp verifies every combination of options.
TEST(NarrowcastTrainVerify, OptionsOfTheHookCanBeChosen) {
  const Words gpt = {"--verify_gradients", "--layers=1",      "--heads=2",          "--width=64",
                     "--context=16",       "--batch_size=24", "--bucket_cap_mb=0.3"};
  const Words all_switches = {"--error_feedback", "--stochastic_rounding", "--exempt_one_dimensional"};
  for (const auto& [ranks, flags] :
       {std::pair(4, Words{"--hook=quantized_allreduce", "--hook_format=int6_b32"} + all_switches),
        std::pair(2, Words{"--hook=quantize_per_channel", "--channel_size=100"})}) {
    const ProgramEnd end = train_on(ranks, gpt + flags);
    EXPECT_EQ(end.exit_code, 0) << ::testing::PrintToString(flags) << end.output << end.errors;
    // From four ranks on, a wire-format hook is also verified with every two ranks as a node.
    EXPECT_EQ(count_of("pass\n", end.output), ranks == 4 ? 3 : 2) << ::testing::PrintToString(flags);
    EXPECT_EQ(count_of(".nodes_of_2 ", end.output), ranks == 4 ? 1 : 0) << end.output;
  }
  const ProgramEnd reference = train_on(2, kReferenceTask + Words{"--hook=int4", "--seed=3"} + all_switches);
  EXPECT_EQ(reference.exit_code, 0) << reference.output << reference.errors;
}

TEST(NarrowcastTrainVerify, WorksAlone) {
  const ProgramEnd end = train_alone(kReferenceTask);
  EXPECT_EQ(end.exit_code, 0) << end.output << end.errors;
}

}  // namespace
}  // namespace narrowcast::testing
