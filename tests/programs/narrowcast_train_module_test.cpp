// TorchScript modules trained by narrowcast-train: real processes, files and sockets.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/serialization/import.h>

#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/programs/train_commands.h"
#include "tests/support/digits.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/trained_modules.h"
#include "trainer/train/files/safetensors.h"

namespace narrowcast::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class NarrowcastTrainModuleTest : public ::testing::Test {
 protected:
  NarrowcastTrainModuleTest() {
    write_digits(folder);
    digit_net().save(folder / "net.pt");
    digit_net(kGivesLoss).save(folder / "loss.pt");
  }
  Words flags(const std::string& module, const Words& more = {}) const {
    return Words{"--model=" + folder / module, "--data=" + folder.path().string(), "--batch_size=20"} + more;
  }
  std::string written(const std::string& name) const {
    return files::read_file(folder / (name + "/model.safetensors"));
  }
  const TemporaryFolder folder;
};

// Guessing among ten digits is ln 10 = 2.3, and right for a tenth. The ranks share no node, so that gradients are
// rounded.
TEST_F(NarrowcastTrainModuleTest, LearnsFromPredictionsAndFromItsOwnLoss) {
  const Words common = {"--steps=80", "--hook=int8", "--node_size=1", "--overwrite", "--output_dir=" + folder / "run"};
  for (const bool predicts : {true, false}) {
    const ProgramEnd end =
        train_on(2, (predicts ? flags("net.pt", {"--loss=cross_entropy"}) : flags("loss.pt")) + common);
    ASSERT_EQ(end.exit_code, 0) << end.errors;
    EXPECT_THAT(end.output, HasSubstr("identical on all ranks"));
    const nlohmann::json result = json_lines(folder / "run/metrics.jsonl").back();
    EXPECT_LT(result["validation_loss"], 0.5);
    EXPECT_EQ(result.contains("validation_accuracy"), predicts);
    EXPECT_GT(result.value("validation_accuracy", 1.0), 0.9);
    EXPECT_EQ(files::read_safetensors(folder / "run/model.safetensors").tensors.count("norm.running_var"), 1U);
    const ProgramEnd evaluated =
        train_on(2, {"--evaluate=" + folder / "run/model.pt", "--data=" + folder.path().string(), "--batch_size=20"});
    EXPECT_EQ(evaluated.exit_code, 0) << evaluated.errors;
    EXPECT_THAT(end.output, HasSubstr(evaluated.output));
  }
}

// The state includes the buffers of batch norms and buffers that forward assigns, each rank's next dropout draws, and
// the residuals of the hook.
TEST_F(NarrowcastTrainModuleTest, ResumesToTheBitOnTwoRanks) {
  averaging_digit_net().save(folder / "averaging.pt");
  const auto words = [&](const std::string& name) {
    return flags("averaging.pt",
                 {"--loss=cross_entropy", "--steps=8", "--hook=int4", "--node_size=1", "--error_feedback",
                  "--checkpoint_every=4", "--keep_checkpoints=0", "--resume", "--output_dir=" + folder / name,
                  "--checkpoint_dir=" + folder / (name + "/checkpoints")});
  };
  ASSERT_EQ(train_on(2, words("whole")).exit_code, 0);
  fs::copy(folder / "whole", folder / "again", fs::copy_options::recursive);
  fs::remove_all(folder / "again/checkpoints/step-00000008");
  fs::remove(folder / "again/model.pt");
  fs::remove(folder / "again/model.safetensors");
  const ProgramEnd end = train_on(2, words("again"));
  EXPECT_EQ(end.exit_code, 0) << end.errors;
  EXPECT_THAT(end.errors, AllOf(HasSubstr("step-00000004, step 4 of 8"), Not(HasSubstr("warning"))));
  EXPECT_EQ(written("again"), written("whole"));
  EXPECT_EQ(files::read_file(folder / "again/model.pt"), files::read_file(folder / "whole/model.pt"));
  const auto tensors = files::read_safetensors(folder / "again/model.safetensors").tensors;
  const torch::jit::Module module = torch::jit::load(folder / "again/model.pt");
  EXPECT_EQ(tensors.at("seen").item<int64_t>(), 8) << "the trial pass does not count";
  EXPECT_GT(tensors.at("average").min().item<double>(), 0);
  for (const char* const name : {"seen", "average"}) {
    EXPECT_TRUE(module.attr(name).toTensor().equal(tensors.at(name))) << name;
  }
}

// Failing memory is not available here, so the module makes replicas differ. It does so again each time after the
// checkpoint of step 4.
TEST_F(NarrowcastTrainModuleTest, GoesBackToTheCheckpointBeforeReplicasDiffered) {
  drifting_digit_net().save(folder / "drifting.pt");
  const Words launcher = {kNarrowcastRun, "--nproc_per_node=2", "--max_restarts=1", kNarrowcastTrain};
  const Words common = {"--loss=cross_entropy",    "--steps=8", "--hook=int8",
                        "--checkpoint_every=2",    "--resume",  "--checkpoint_dir=" + folder / "checkpoints",
                        "--check_replicas_every=0"};
  const ProgramEnd end = run_to_end(launcher + flags("drifting.pt", common), alone());
  EXPECT_EQ(end.exit_code, 1) << end.errors;
  EXPECT_THAT(
      end.errors,
      AllOf(HasSubstr("resumes from " + folder / "checkpoints/step-00000004"),
            HasSubstr(
                "replicas differ after step 6: rank 0 from rank 1, without a majority that shows which is wrong, in "
                "'model.net.second.bias', the first of ")));
  EXPECT_TRUE(fs::exists(folder / "checkpoints/step-00000004"));
  EXPECT_FALSE(fs::exists(folder / "checkpoints/step-00000006"));
}

TEST_F(NarrowcastTrainModuleTest, ResumingWithAnotherModuleIsOneError) {
  const Words words =
      flags("net.pt", {"--loss=cross_entropy", "--steps=2", "--resume", "--checkpoint_dir=" + folder / "checkpoints"});
  ASSERT_EQ(train_alone(words).exit_code, 0);
  digit_net(std::string(kPredicts) + "def more(self) -> int:\n    return 1\n").save(folder / "net.pt");
  expect_one_line(train_alone(words), 2, "model_hash: is ");
}

// Ranks draw dropout independently, but repeat their draws in all passes.
TEST_F(NarrowcastTrainModuleTest, EveryHooksGradientsAreVerified) {
  for (const Words& words : {flags("net.pt", {"--loss=cross_entropy"}), flags("loss.pt")}) {
    const ProgramEnd end = train_on(2, words + Words{"--verify_gradients"});
    EXPECT_EQ(end.exit_code, 0) << end.output << end.errors;
    EXPECT_THAT(end.output, AllOf(HasSubstr("int4"), HasSubstr("pass"), Not(HasSubstr("FAIL"))));
  }
}

// The loss of a step is the mean of the numbers that the ranks draw in it.
TEST_F(NarrowcastTrainModuleTest, RanksAndStepsDrawForThemselves) {
  digit_net(
      "def forward(self, images: Tensor, targets: Tensor) -> Tensor:\n"
      "    parameters = self.first.weight.sum() + self.first.bias.sum() + self.norm.weight.sum() + "
      "self.norm.bias.sum() + self.second.weight.sum() + self.second.bias.sum()\n"
      "    return parameters * 0. + torch.rand([1]).sum()\n")
      .save(folder / "drawing.pt");
  const auto losses_on = [&](int64_t ranks) {
    const ProgramEnd end = train_on(ranks, flags("drawing.pt", {"--steps=2", "--log_every=1", "--hook=allreduce",
                                                                "--overwrite", "--output_dir=" + folder / "run"}));
    EXPECT_EQ(end.exit_code, 0) << end.errors;
    std::vector<double> losses;
    for (const nlohmann::json& line : json_lines(folder / "run/metrics.jsonl")) {
      if (line["event"] == "step") losses.push_back(line["loss"]);
    }
    return losses;
  };
  const std::vector<double> alone = losses_on(1);
  ASSERT_EQ(alone.size(), 2U);
  EXPECT_NE(alone[0], alone[1]);
  const std::vector<double> together = losses_on(2);
  EXPECT_GT(std::abs(together[0] - alone[0]), 1e-6) << "rank 1 draws what rank 0 does";
  EXPECT_EQ(losses_on(2), together);
}

constexpr at::ScalarType kSavedDtypes[] = {at::kFloat,       at::kDouble,        at::kHalf,         at::kBFloat16,
                                           at::kFloat8_e5m2, at::kFloat8_e4m3fn, at::kComplexFloat, at::kBool,
                                           at::kByte,        at::kChar,          at::kUInt16,       at::kShort,
                                           at::kUInt32,      at::kInt,           at::kUInt64,       at::kLong};

std::string buffer_name(at::ScalarType dtype) { return std::string("buffer_") + c10::toString(dtype); }

at::Tensor values_of(at::ScalarType dtype) { return at::arange(6, at::kFloat).view({2, 3}).to(dtype); }

// A buffer of each dtype that model files can contain, and one whose rows share memory.
torch::jit::Module net_with_buffers() {
  torch::jit::Module net = digit_net();
  for (const at::ScalarType dtype : kSavedDtypes) net.register_buffer(buffer_name(dtype), values_of(dtype));
  net.register_buffer("expanded", at::arange(3, at::kLong).expand({4, 3}));
  return net;
}

void expect_buffers(const std::string& file) {
  const auto tensors = files::read_safetensors(file).tensors;
  for (const at::ScalarType dtype : kSavedDtypes) {
    const at::Tensor& saved = tensors.at(buffer_name(dtype));
    EXPECT_EQ(saved.scalar_type(), dtype);
    EXPECT_TRUE(saved.view(at::kByte).equal(values_of(dtype).view(at::kByte))) << dtype;
  }
  EXPECT_TRUE(tensors.at("expanded").equal(at::arange(3, at::kLong).expand({4, 3})));
}

TEST_F(NarrowcastTrainModuleTest, BuffersOfEveryDtypeAreSentSavedAndRead) {
  net_with_buffers().save(folder / "net.pt");
  const Words common = flags("net.pt", {"--loss=cross_entropy", "--steps=4", "--hook=allreduce", "--bucket_cap_mb=25"});
  const Words whole = common + Words{"--checkpoint_dir=" + folder / "checkpoints", "--checkpoint_every=2",
                                     "--keep_checkpoints=0", "--output_dir=" + folder / "whole"};
  const ProgramEnd end = train_on(2, whole);
  ASSERT_EQ(end.exit_code, 0) << end.errors;
  EXPECT_THAT(end.output, HasSubstr("identical on all ranks"));
  expect_buffers(folder / "whole/model.safetensors");
  const ProgramEnd resumed = train_on(
      2, common + Words{"--resume_from=" + folder / "checkpoints/step-00000002", "--output_dir=" + folder / "resumed"});
  EXPECT_EQ(resumed.exit_code, 0) << resumed.errors;
  EXPECT_EQ(written("resumed"), written("whole"));
  const ProgramEnd evaluated =
      train_on(2, {"--evaluate=" + folder / "whole/model.pt", "--data=" + folder.path().string(), "--batch_size=20"});
  EXPECT_EQ(evaluated.exit_code, 0) << evaluated.errors;
  EXPECT_THAT(end.output, HasSubstr(evaluated.output));
  const ProgramEnd begun = train_alone(
      common + Words{"--init_from=" + folder / "whole/model.safetensors", "--output_dir=" + folder / "begun"});
  EXPECT_EQ(begun.exit_code, 0) << begun.errors;
  expect_buffers(folder / "begun/model.safetensors");
}

// Traced modules have such operators; each mode is named once.
TEST_F(NarrowcastTrainModuleTest, OperatorsWithAFixedModeAreNamed) {
  digit_net(
      "def forward(self, images: Tensor) -> Tensor:\n"
      "    return torch.dropout(self.logits(images), 0.5, False)\n")
      .save(folder / "traced.pt");
  const ProgramEnd end = train_on(2, flags("traced.pt", {"--loss=cross_entropy", "--steps=1", "--dry_run"}));
  EXPECT_EQ(end.exit_code, 0) << end.errors;
  EXPECT_EQ(count_of("warning: model: " +
                         folder / "traced.pt ignores train() and eval(), as traced modules do: aten::dropout in "
                                  "evaluation mode (once, in the module itself)",
                     end.errors),
            1)
      << end.errors;
  EXPECT_THAT(train_alone(flags("net.pt", {"--loss=cross_entropy", "--dry_run"})).errors, Not(HasSubstr("traced")));
}

}  // namespace
}  // namespace narrowcast::testing
