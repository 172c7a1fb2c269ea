// A model trained, quantised, evaluated and sampled by the programs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <string>

#include "tests/programs/train_commands.h"
#include "tests/support/temporary_folder.h"

namespace narrowcast::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

ProgramEnd quantize(const Words& arguments) { return run_to_end(Words{NARROWCAST_QUANTIZE} + arguments, alone()); }

ProgramEnd evaluate(const std::string& file, const Words& more = {}) {
  return train_alone(Words{"--evaluate=" + file, "--batch_size=12", "--eval_batches=1", "--threads=1"} + more);
}

// The number behind `name` in a program's output.
double printed_value(const std::string& output, const std::string& name) {
  const size_t at = output.find(name);
  return at == std::string::npos ? NAN : std::stod(output.substr(at + name.size()));
}

TEST(NarrowcastQuantize, WhatItWritesIsEvaluatedLikeTheOriginal) {
  const TemporaryFolder folder;
  const ProgramEnd trained = train_alone(small_gpt() + Words{"--output_dir=" + folder / "run"});
  ASSERT_EQ(trained.exit_code, 0) << trained.errors;
  const std::string model = folder / "run/model.safetensors";
  const std::string quantized = folder / "int8.safetensors";

  const ProgramEnd end = quantize({model, quantized});
  ASSERT_EQ(end.exit_code, 0) << end.errors;
  EXPECT_THAT(end.output, AllOf(StartsWith("layer"), HasSubstr("\nblocks.0.mlp_input "), HasSubstr("\nsum ")));
  EXPECT_THAT(end.errors, IsEmpty());

  const double loss = printed_value(evaluate(model).output, "validation loss");
  const double quantized_loss = printed_value(evaluate(quantized).output, "validation loss");
  EXPECT_EQ(loss, printed_value(trained.output, "validation loss"));
  // The loss is printed with four digits. It is close to ln(vocabulary) after so few steps, with logits near zero: an
  // error of some percent in them cannot change it by as much as a hundredth.
  EXPECT_NEAR(quantized_loss, loss, 0.01);
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
  EXPECT_NEAR(printed_value(end.output, "validation loss"), alone, 1.1e-4);  // the last of four printed digits
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
