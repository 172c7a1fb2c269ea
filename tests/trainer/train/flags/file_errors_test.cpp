// Command lines of narrowcast-train that do not fit the files that they name. Each prints one line.
#include <ATen/ATen.h>
#include <c10/util/StringUtil.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/data_files.h"
#include "tests/support/digits.h"
#include "tests/support/gpt2_weights.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/trained_modules.h"
#include "tests/trainer/train/flags/train_in_process.h"
#include "trainer/train/files/safetensors.h"

namespace narrowcast::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

void expect_one_line(const Words& words, int code, const std::string& text) {
  const Ending end = train(words);
  EXPECT_EQ(end.code, code) << end.errors;
  EXPECT_EQ(std::count(end.errors.begin(), end.errors.end(), '\n'), 1) << end.errors;
  EXPECT_THAT(end.errors, AllOf(StartsWith("narrowcast-train: "), HasSubstr(text)));
  EXPECT_THAT(end.output, IsEmpty());
}

TEST(Gpt2FileErrors, AreOneLine) {
  const TemporaryFolder folder;
  const std::string start = folder / "gpt2.safetensors";
  files::write_safetensors(start, {.tensors = gpt2_weights({.layers = 1, .context = 16, .vocabulary = 160}),
                                   .metadata = {{"format", "pt"}}});
  const auto flags = [&](const Words& more) {
    return Words{"--model=gpt", "--init_from=" + start, "--heads=2", "--batch_size=12"} + more;
  };
  expect_one_line(flags({"--width=32"}), 2, "width: is 32, but 16 in " + start + ", the file of init_from");
  expect_one_line(flags({"--vocabulary=161"}), 2, "vocabulary_size: is 161, but 160 in ");
  expect_one_line(flags({"--heads=3"}), 2, "gpt: option heads must divide width, but heads is 3 and width is 16");
  expect_one_line(flags({"--dropout=1"}), 2, "dropout: must be at least 0 and below 1, but is 1");
  expect_one_line(flags({"--label_smoothing=-1"}), 2, "label_smoothing: must be at least 0 and below 1, but is -1");
  expect_one_line({"--init_from=" + folder / "none.safetensors"}, 2, "none.safetensors");
  expect_one_line({"--model=char_gpt", "--init_from=" + start}, 4, "does not belong to the model");
  expect_one_line({"--evaluate=" + start}, 4, "is not a model of narrowcast");
}

class ModuleFileErrors : public ::testing::Test {
 protected:
  ModuleFileErrors() {
    write_digits(folder);
    digit_net().save(folder / "net.pt");
    digit_net(kGivesLoss).save(folder / "loss.pt");
  }
  Words flags(const std::string& module, const Words& more = {}) const {
    return Words{"--model=" + folder / module, "--data=" + folder.path().string(), "--batch_size=20"} + more;
  }
  const TemporaryFolder folder;
  const Words loss = {"--loss=cross_entropy"};
};

TEST_F(ModuleFileErrors, OfWhatCannotBeTrained) {
  torch::jit::Module frozen = digit_net();
  frozen.eval();
  torch::jit::freeze(frozen).save(folder / "frozen.pt");
  digit_net("def forward(self, images: Tensor, targets: Tensor, weights: Tensor) -> Tensor:\n    return images\n")
      .save(folder / "three.pt");
  digit_net("def forward(self, images: Tensor) -> Tensor:\n    return self.logits(images.to('cuda'))\n")
      .save(folder / "cuda.pt");
  folder.write("text.pt", "no archive");
  expect_one_line(flags("frozen.pt", loss), 2, "frozen.pt: none of its 0 parameters requires a gradient");
  expect_one_line(flags("three.pt"), 2, "(Tensor images, Tensor targets, Tensor weights)");
  expect_one_line(flags("cuda.pt", loss), 2, "cuda.pt: its forward failed on inputs of shape [20, 8, 8]: ");
  expect_one_line(flags("text.pt", loss), 4, "text.pt: is not a TorchScript module");
  expect_one_line(flags("none.pt", loss), 2, "none.pt");
  fs::copy(folder / "net.pt", folder / "net.pth");
  expect_one_line(flags("net.pth", loss), 2, "net.pth must be named *.pt to be read as a TorchScript module");
}

TEST_F(ModuleFileErrors, OfFlagsThatDoNotFitTheModule) {
  expect_one_line(flags("net.pt"), 2, "loss: must be cross_entropy, mse or bce_with_logits for ");
  expect_one_line(flags("loss.pt", loss), 2, "loss: has no effect with ");
  expect_one_line(flags("net.pt", {"--loss=hinge"}), 2, "loss: must be cross_entropy, mse or bce_with_logits");
  expect_one_line(flags("net.pt", loss + Words{"--width=3"}), 2, "--width: has no effect with --model=");
  expect_one_line(flags("net.pt", loss + Words{"--context=3"}), 2, "--context: has no effect with images");
  expect_one_line(flags("net.pt", loss + Words{"--sample_length=3"}), 2, "--sample_length: has no effect");
}

// Also reported if nothing would be written, so that it is known before a training that takes days.
TEST_F(ModuleFileErrors, OfABufferThatCannotBeSaved) {
  torch::jit::Module net = digit_net();
  net.register_buffer("table", at::ones({2}, at::kComplexDouble));
  net.save(folder / "net.pt");
  const std::string line =
      folder / "net.pt: buffer 'table' is ComplexDouble, which model files (safetensors) cannot hold";
  expect_one_line(flags("net.pt", loss), 2, line);
  expect_one_line(flags("net.pt", loss + Words{"--dry_run"}), 2, line);
  expect_one_line({"--evaluate=" + folder / "net.pt", "--data=" + folder.path().string()}, 2, line);
}

class TokenFileErrors : public ::testing::Test {
 protected:
  TokenFileErrors() {
    folder.write("tokens/text_train_1.bin", gpt2_file(std::vector<uint16_t>(400, 30)));
    folder.write("tokens/text_val_2.bin", gpt2_file(std::vector<uint16_t>(100, 30)));
  }
  const TemporaryFolder folder;
  const std::string data = "--data=" + folder / "tokens";
  const std::string text = "--data=" + folder.write("text.txt", std::string(9000, 'x'));
};

// The module never gets such tokens: it would end the process on a GPU.
TEST_F(TokenFileErrors, OfTokensThatAModuleMustNotGet) {
  const std::string net = folder / "net.pt";
  digit_net().save(net);
  const Words training = {"--model=" + net, "--loss=cross_entropy", data, "--context=4", "--steps=1"};
  const Words evaluation = {"--evaluate=" + net, data, "--context=4"};
  for (const Words& words : {training, evaluation}) {
    expect_one_line(words, 2, "vocabulary: must be given with token files for " + net);
    expect_one_line(words + Words{"--vocabulary=1"}, 4, "but the vocabulary has 1 tokens, 0..0");
  }
  expect_one_line({"--evaluate=" + net, text, "--vocabulary=9"}, 2, "--vocabulary: has no effect without token files");
}

TEST_F(TokenFileErrors, OfFlagsThatMeanNothingForThem) {
  const Words dry = {"--dry_run"};  // So that flags that are accepted do not start a training.
  expect_one_line(Words{data, "--sample_length=5"} + dry, 2, "--sample_length: has no effect with token files");
  expect_one_line(Words{"--vocabulary=5"} + dry, 2, "--vocabulary: has no effect without token files");
  expect_one_line(Words{text, "--vocabulary=5"} + dry, 2, "--vocabulary: has no effect without token files");
  expect_one_line(Words{data, "--vocabulary=0"} + dry, 2, "vocabulary: must be at least 1, but is 0");
  expect_one_line(Words{data, "--model=mlp"} + dry, 2,
                  "data: mlp learns from images and other samples with classes, but ");
}

TEST_F(TokenFileErrors, OfDamagedFilesAndTwoFormats) {
  std::string file = gpt2_file(std::vector<uint16_t>(400, 30));
  file[4] = 9;
  folder.write("tokens/text_train_1.bin", file);
  expect_one_line({data}, 4, "/text_train_1.bin: byte 4: has the version 9");
  folder.write("tokens/train_inputs.npy", "");
  expect_one_line({data}, 4, "holds data of two formats, ");
}

TEST(TensorFileErrors, AreOneLine) {
  const TemporaryFolder folder;
  write_tensors(folder, "train", at::ones({20, 8, 8}), at::arange(20) % 3);
  write_tensors(folder, "validation", at::ones({6, 8, 8}), at::arange(6) % 3);
  digit_net().save(folder / "net.pt");
  const std::string data = "--data=" + folder.path().string();
  expect_one_line({data}, 2, "data: char_gpt learns from text and tokens, but ");
  expect_one_line({data, "--model=mlp", "--context=3"}, 2, "--context: has no effect with --model=mlp");
  expect_one_line({data, "--model=" + folder / "net.pt", "--loss=cross_entropy", "--context=3"}, 2,
                  "--context: has no effect with images and other tensors");
  fs::remove(folder / "validation.safetensors");
  expect_one_line({data, "--model=mlp"}, 4, ": has no validation*.safetensors");
}

}  // namespace
}  // namespace narrowcast::testing
