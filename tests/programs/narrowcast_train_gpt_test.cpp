// GPT-2: the programs fine-tune it from a file of Hugging Face's layout, resume, verify, evaluate and quantise it.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "tests/programs/train_commands.h"
#include "tests/support/gpt2_weights.h"
#include "tests/support/temporary_folder.h"
#include "trainer/train/files/safetensors.h"

namespace narrowcast::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr Gpt2Shape kShape = {.layers = 1, .width = 16, .context = 16, .vocabulary = 160};

// Uses the default text. The vocabulary of kShape is large enough for its characters.
// tests/trainer/train/flags/file_errors_test.cpp has flags that do not fit the file.
class NarrowcastTrainGptTest : public ::testing::Test {
 protected:
  NarrowcastTrainGptTest() {
    files::write_safetensors(start, {.tensors = gpt2_weights(kShape), .metadata = {{"format", "pt"}}});
  }

  Words flags(const Words& more = {}) const {
    return Words{"--model=gpt",     "--init_from=" + start, "--heads=2",         "--steps=8",
                 "--batch_size=12", "--eval_batches=1",     "--sample_length=20"} +
           more;
  }
  std::string written(const std::string& run) const { return files::read_file(folder / (run + "/model.safetensors")); }

  const TemporaryFolder folder;
  const std::string start = folder / "gpt2.safetensors";
};

// The state includes dropout draws of each rank's generator, and residuals of the hook, which ranks on one node would
// not have.
TEST_F(NarrowcastTrainGptTest, FineTunesOnTwoRanksAndResumesToTheBit) {
  const auto words = [&](const std::string& run) {
    return flags({"--dropout=0.1", "--label_smoothing=0.1", "--hook=int4", "--node_size=1", "--error_feedback",
                  "--checkpoint_every=4", "--keep_checkpoints=0", "--resume", "--output_dir=" + folder / run,
                  "--checkpoint_dir=" + folder / (run + "/checkpoints")});
  };
  const ProgramEnd whole = train_on(2, words("whole"));
  ASSERT_EQ(whole.exit_code, 0) << whole.errors;
  EXPECT_THAT(whole.output, AllOf(HasSubstr("identical on all ranks"), HasSubstr("sample:\n")));
  const files::Safetensors model = files::read_safetensors(folder / "whole/model.safetensors");
  for (const auto& [name, tensor] : gpt2_weights(kShape)) {
    ASSERT_TRUE(model.tensors.contains(name)) << name;
    EXPECT_EQ(model.tensors.at(name).sizes(), tensor.sizes()) << name;
    EXPECT_FALSE(model.tensors.at(name).equal(tensor)) << name;
    EXPECT_TRUE(model.tensors.at(name).allclose(tensor, 0, 0.1)) << name << " is where it began";
  }
  fs::copy(folder / "whole", folder / "again", fs::copy_options::recursive);
  fs::remove_all(folder / "again/checkpoints/step-00000008");
  fs::remove(folder / "again/model.safetensors");
  const ProgramEnd again = train_on(2, words("again"));
  EXPECT_EQ(again.exit_code, 0) << again.errors;
  EXPECT_THAT(again.errors, AllOf(HasSubstr("step-00000004, step 4 of 8"), Not(HasSubstr("warning"))));
  EXPECT_EQ(written("again"), written("whole"));
}

TEST_F(NarrowcastTrainGptTest, GradientsUnderHooksAreVerified) {
  const ProgramEnd end = train_on(2, {"--model=gpt", "--init_from=" + start, "--heads=2", "--batch_size=12",
                                      "--dropout=0.1", "--label_smoothing=0.1", "--hook=int8", "--verify_gradients"});
  EXPECT_EQ(end.exit_code, 0) << end.output << end.errors;
  EXPECT_THAT(end.output, AllOf(HasSubstr("int8"), HasSubstr("pass"), Not(HasSubstr("FAIL"))));
}

// Its vocabulary has more tokens than the text has characters; the other tokens are never written.
TEST_F(NarrowcastTrainGptTest, IsEvaluatedContinuedQuantisedAndTrainedOn) {
  const std::string run = folder / "run";
  const ProgramEnd trained =
      train_alone(flags({"--output_dir=" + run, "--label_smoothing=0.3", "--dropout=0.2", "--threads=1"}));
  ASSERT_EQ(trained.exit_code, 0) << trained.errors;
  const Words evaluation = {"--batch_size=12", "--eval_batches=1", "--generate=200", "--prompt=the ", "--threads=1"};
  const ProgramEnd end = train_alone(Words{"--evaluate=" + run + "/model.safetensors"} + evaluation);
  EXPECT_EQ(end.exit_code, 0) << end.errors;
  const std::string loss = end.output.substr(0, end.output.find('\n') + 1);
  EXPECT_THAT(loss, StartsWith("validation loss "));
  EXPECT_THAT(trained.output, HasSubstr(loss)) << "nothing of it is smoothed";
  EXPECT_THAT(end.output, HasSubstr("text:\nthe "));
  const ProgramEnd sample =
      train_alone({"--evaluate=" + run + "/model.safetensors", "--eval_batches=0", "--generate=20"});
  ASSERT_THAT(sample.output, StartsWith("text:\n"));
  EXPECT_THAT(trained.output, HasSubstr("sample:\n" + sample.output.substr(6))) << "nothing of it is dropped";
  const std::string int8 = folder / "int8.safetensors";
  EXPECT_EQ(run_to_end({kNarrowcastQuantize, run + "/model.safetensors", int8}, alone()).exit_code, 0);
  EXPECT_EQ(train_alone(Words{"--evaluate=" + int8} + evaluation).exit_code, 0);
  const Words on = {"--model=gpt", "--init_from=" + run + "/model.safetensors", "--steps=1", "--batch_size=12"};
  EXPECT_EQ(train_alone(on).exit_code, 0) << "it knows its heads itself";
}

TEST_F(NarrowcastTrainGptTest, ResumingFromAnotherBeginningIsOneError) {
  const Words words = flags({"--steps=2", "--resume", "--checkpoint_dir=" + folder / "checkpoints"});
  ASSERT_EQ(train_alone(words).exit_code, 0);
  auto tensors = gpt2_weights(kShape);
  tensors["ln_f.bias"] += 1;
  files::write_safetensors(start, {.tensors = tensors, .metadata = {}});
  expect_one_line(train_alone(words), 2, "init_from_hash: is ");
}

}  // namespace
}  // namespace narrowcast::testing
