// A bit of a rank's memory flips during training.
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <system_error>

#include "tests/programs/launcher/run_commands.h"
#include "tests/support/process_memory.h"
#include "trainer/train/files/safetensors.h"

namespace narrowcast::testing {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

class NarrowcastRunCorruptionTest : public NarrowcastRunFixture {
 protected:
  // Three ranks, which write their pids to files. The learning rate is so small that weights never change, and their
  // bytes are known; the optimizer's moments do change.
  Words training(const std::string& name) const {
    const std::string train =
        std::string(kNarrowcastTrain) +
        " --model=char_gpt --layers=1 --heads=2 --width=16 --context=16 --batch_size=12"
        " --eval_batches=1 --sample_length=0 --log_every=1 --hook=int8 --learning_rate=1e-30"
        " --steps=320 --check_replicas_every=5 --checkpoint_every=40 --keep_checkpoints=0 --resume --checkpoint_dir=" +
        folder / (name + "-checkpoints") + " --output_dir=" + folder / name;
    const std::string pid = folder / (name + "-pid");
    return command(3, "echo $$ > " + pid + "-$TORCHELASTIC_RESTART_COUNT-$RANK; exec " + train, {"--max_restarts=1"});
  }
  pid_t pid_of_rank_1() const {
    pid_t pid = 0;
    std::ifstream(folder / "flipped-pid-0-1") >> pid;
    return pid;
  }
  // Some bytes of a weight, which are the same on every rank and at every time.
  std::string bytes_of_a_weight(const std::string& name) const {
    const at::Tensor weight =
        files::read_safetensors(folder / (name + "/model.safetensors")).tensors.at("token_embedding.weight");
    constexpr int64_t kNumbers = 16;
    const at::Tensor some = weight.flatten().narrow(0, weight.numel() / 2, kNumbers).contiguous();
    return {static_cast<const char*>(some.const_data_ptr()), static_cast<size_t>(some.nbytes())};
  }
  // Without the entry for the duration.
  std::map<std::string, at::Tensor> last_checkpoint(const std::string& name, const std::string& file) const {
    auto tensors = files::read_safetensors(folder / (name + "-checkpoints/step-00000320/" + file)).tensors;
    std::erase_if(tensors, [](const auto& entry) { return entry.first.ends_with("seconds"); });
    return {tensors.begin(), tensors.end()};
  }
};

TEST_F(NarrowcastRunCorruptionTest, TheRankIsNamedAndTheJobGoesBackToItsLastCheckpoint) {
  const ProgramEnd whole = run_to_end(training("whole"));
  ASSERT_EQ(whole.exit_code, 0) << whole.errors;
  const std::string bytes = bytes_of_a_weight("whole");
  RunningProgram launcher(training("flipped"));
  launcher.wait_for_errors("step   1/320");
  wait_until([&] { return std::filesystem::exists(folder / "flipped-checkpoints/step-00000040"); });
  const pid_t rank1 = pid_of_rank_1();
  ASSERT_GT(rank1, 0);
  ASSERT_EQ(::kill(rank1, SIGSTOP), 0);
  try {
    EXPECT_GT(flip_a_bit_of(bytes, rank1), 0) << "its weights are elsewhere";
  } catch (const std::system_error& error) {
    GTEST_SKIP() << "no memory of another process can be written: " << error.what();
  }
  ASSERT_EQ(::kill(rank1, SIGCONT), 0);
  const ProgramEnd end = launcher.wait();
  EXPECT_EQ(end.exit_code, 0) << end.errors;
  EXPECT_THAT(end.errors, AllOf(ContainsRegex("replicas differ after step [0-9]+: rank 1 .*token_embedding.weight"),
                                HasSubstr("restart 1"), ContainsRegex("resumes from .*step-000")));
  for (const char* const file : {"replica.safetensors", "rank-00001.safetensors"}) {
    const auto expected = last_checkpoint("whole", file);
    const auto flipped = last_checkpoint("flipped", file);
    EXPECT_EQ(flipped.size(), expected.size());
    for (const auto& [name, tensor] : flipped) {
      EXPECT_TRUE(at::equal(tensor, expected.at(name))) << file << ": " << name;
    }
  }
}

}  // namespace
}  // namespace narrowcast::testing
