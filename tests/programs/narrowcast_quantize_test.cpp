// The programs train, quantise, evaluate and sample a model.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/programs/train_commands.h"
#include "tests/support/temporary_folder.h"
#include "trainer/train/files/safetensors.h"

namespace narrowcast::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

ProgramEnd quantize(const Words& arguments) { return run_to_end(Words{kNarrowcastQuantize} + arguments, alone()); }

ProgramEnd evaluate(const std::string& file, const Words& more = {}) {
  return train_alone(Words{"--evaluate=" + file, "--batch_size=12", "--eval_batches=1", "--threads=1"} + more);
}

// The number after `name` in a program's output.
double printed_value(const std::string& output, const std::string& name) {
  const size_t at = output.find(name);
  return at == std::string::npos ? NAN : std::stod(output.substr(at + name.size()));
}

// Losses are printed with four digits.
constexpr double kLastDigit = 1e-4;

// A model that has memorised its text: a wrong weight changes its loss visibly, which it would not near ln(vocabulary).
class NarrowcastQuantizeOfATrainedModel : public ::testing::Test {
 protected:
  void SetUp() override {
    const ProgramEnd trained = train_alone({"--model=char_gpt", "--layers=1", "--heads=2", "--width=32", "--context=16",
                                            "--steps=120", "--learning_rate=0.02", "--batch_size=12",
                                            "--eval_batches=1", "--data=" + text, "--output_dir=" + folder / "run"});
    ASSERT_EQ(trained.exit_code, 0) << trained.errors;
    loss = printed_value(trained.output, "validation loss");
    ASSERT_LT(loss, 0.5);  // Guessing the text's 18 characters gives ln(18) = 2.9.
  }

  static std::string repeated_text() {
    std::string text;
    for (int i = 0; i < 100; ++i) text += "the cat sat on the mat, and the dog lay by the log. ";
    return text;
  }

  double loss_of(const std::string& file) const {
    const ProgramEnd end = evaluate(file, {"--data=" + text});
    EXPECT_EQ(end.exit_code, 0) << end.errors;
    return printed_value(end.output, "validation loss");
  }

  const TemporaryFolder folder;
  const std::string text = folder.write("text.txt", repeated_text());
  const std::string model = folder / "run/model.safetensors";
  const std::string quantized = folder / "int8.safetensors";
  double loss = NAN;
};

TEST_F(NarrowcastQuantizeOfATrainedModel, EvaluatesItAsItWasTrained) { EXPECT_EQ(loss_of(model), loss); }

// The layers of a quantised file.
std::vector<std::string> layers_of(const files::Safetensors& content) {
  const std::string suffix = ".scales";
  std::vector<std::string> layers;
  for (const auto& [name, tensor] : content.tensors) {
    if (name.ends_with(suffix)) layers.push_back(name.substr(0, name.size() - suffix.size()));
  }
  return layers;
}

// `weight` with each row rounded to whole multiples of its scale, as the operator's document defines it.
at::Tensor rounded(const at::Tensor& weight) {
  const at::Tensor scales = at::clamp_min(weight.abs().amax(1, /*keepdim=*/true) / 127.5, 0x1p-23);
  return at::clamp(at::round(weight / scales), -128, 127) * scales;
}

// The evaluated model has its weights rounded as documented. The same model in float32 differs from it only by the
// order of sums, which can change the last printed digit by one.
TEST_F(NarrowcastQuantizeOfATrainedModel, EvaluatesWhatItWritesLikeRoundedWeights) {
  const ProgramEnd end = quantize({model, quantized});
  ASSERT_EQ(end.exit_code, 0) << end.errors;
  EXPECT_THAT(end.output, AllOf(StartsWith("layer"), HasSubstr("\nblocks.0.mlp_input "), HasSubstr("\nsum ")));
  EXPECT_THAT(end.errors, IsEmpty());

  files::Safetensors content = files::read_safetensors(model);
  const std::vector<std::string> layers = layers_of(files::read_safetensors(quantized));
  EXPECT_EQ(layers.size(), 4U);
  for (const std::string& layer : layers) {
    at::Tensor& weight = content.tensors.at(layer + ".weight");
    weight = rounded(weight);
  }
  files::write_safetensors(folder / "rounded.safetensors", content);
  EXPECT_NEAR(loss_of(quantized), loss_of(folder / "rounded.safetensors"), 1.1 * kLastDigit);
}

// The comparison above detects wrong scales in any layer.
TEST_F(NarrowcastQuantizeOfATrainedModel, LosesByTheScalesOfAnyLayer) {
  ASSERT_EQ(quantize({model, quantized}).exit_code, 0);
  const files::Safetensors content = files::read_safetensors(quantized);
  const double expected = loss_of(quantized);
  for (const std::string& layer : layers_of(content)) {
    files::Safetensors wrong = content;
    wrong.tensors.at(layer + ".scales") = content.tensors.at(layer + ".scales") * 1.5;
    files::write_safetensors(folder / "wrong.safetensors", wrong);
    EXPECT_GT(std::fabs(loss_of(folder / "wrong.safetensors") - expected), 10 * kLastDigit) << layer;
  }
}

TEST(NarrowcastQuantize, SamplesTheQuantisedModel) {
  const TemporaryFolder folder;
  train_alone(small_gpt() + Words{"--output_dir=" + folder / "run"});
  quantize({folder / "run/model.safetensors", folder / "int8.safetensors"});
  const ProgramEnd end = train_alone({"--evaluate=" + folder / "int8.safetensors", "--eval_batches=0", "--generate=7",
                                      "--prompt=the ", "--temperature=0"});
  EXPECT_EQ(end.exit_code, 0) << end.errors;
  EXPECT_THAT(end.output, StartsWith("text:\nthe "));
  EXPECT_EQ(end.output.size(), std::string("text:\nthe ").size() + 7 + 1);
}

TEST(NarrowcastQuantize, EvaluatesOnSeveralRanks) {
  const TemporaryFolder folder;
  train_alone(small_gpt() + Words{"--output_dir=" + folder / "run"});
  const Words flags = {"--evaluate=" + folder / "run/model.safetensors", "--batch_size=12", "--eval_batches=1"};
  const double alone = printed_value(train_alone(flags).output, "validation loss");
  const ProgramEnd end = train_on(3, flags);
  EXPECT_EQ(end.exit_code, 0) << end.errors;
  EXPECT_NEAR(printed_value(end.output, "validation loss"), alone, 1.1 * kLastDigit);
}

TEST(NarrowcastQuantize, EveryErrorIsOneLine) {
  const TemporaryFolder folder;
  const auto expect_one_line = [](const ProgramEnd& end, int exit_code, const std::string& text) {
    EXPECT_EQ(end.exit_code, exit_code) << end.errors;
    EXPECT_EQ(count_of("\n", end.errors), 1) << end.errors;
    EXPECT_THAT(end.errors, AllOf(StartsWith("narrowcast-quantize: "), HasSubstr(text)));
    EXPECT_THAT(end.output, IsEmpty());
  };
  expect_one_line(quantize({}), 2, "needs two files");
  expect_one_line(quantize({"a.safetensors", "b.safetensors", "--overwrite"}), 2, "there are 3 arguments");
  expect_one_line(quantize({folder / "a.safetensors", folder / "b.safetensors"}), 2, "a.safetensors");
  const std::string bad = folder.write("bad.safetensors", "no tensors here");
  expect_one_line(quantize({bad, folder / "b.safetensors"}), 4, "bad.safetensors");
  EXPECT_FALSE(std::filesystem::exists(folder / "b.safetensors"));
}

}  // namespace
}  // namespace narrowcast::testing
