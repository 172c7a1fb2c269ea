// The user's own data, in token files, safetensors and NPY: real processes, files and sockets.
// tests/trainer/train/flags/file_errors_test.cpp has flags that do not fit the data.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "tests/programs/train_commands.h"
#include "tests/support/data_files.h"
#include "tests/support/digits.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/trained_modules.h"
#include "trainer/train/data/idx_images.h"
#include "trainer/train/data/text_dataset.h"
#include "trainer/train/files/safetensors.h"

namespace narrowcast::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Flags that make results depend only on the data.
Words fixed_bits() { return {"--hook=allreduce", "--bucket_cap_mb=25"}; }

// The losses that a training wrote, in order.
std::vector<double> losses_in(const std::string& metrics) {
  std::vector<double> losses;
  for (const nlohmann::json& line : json_lines(metrics)) {
    for (const char* key : {"loss", "validation_loss"}) {
      if (line.contains(key)) losses.push_back(line[key]);
    }
  }
  return losses;
}

// A page of this project, and the tokens of each of its segments as files of llm.c.
class TokenFilesOfAText : public ::testing::Test {
 protected:
  TokenFilesOfAText() {
    const data::TextDataset dataset(data::TextCorpus::from_paths({page}), /*context=*/16);
    vocabulary_size = dataset.corpus().vocabulary().size();
    int number = 100;
    for (const auto& [part, segments] :
         {std::pair{"train", dataset.split().training}, {"val", dataset.split().held_out}}) {
      for (const data::TextSegment& segment : segments) {
        const auto tokens = dataset.corpus().tokens().begin();
        folder.write(c10::str("tokens/page_", part, "_", number++, ".bin"),
                     gpt2_file({tokens + segment.begin, tokens + segment.end}));
      }
    }
  }

  Words flags(const std::string& data, const std::string& run) const {
    return small_gpt() + fixed_bits() +
           Words{"--data=" + data, "--log_every=1", "--eval_every=3", "--output_dir=" + folder / run};
  }

  const TemporaryFolder folder;
  const std::string page = kBook;
  const std::string tokens = folder / "tokens";
  int64_t vocabulary_size = 0;
};

TEST_F(TokenFilesOfAText, TrainToTheBitsOfTheText) {
  const ProgramEnd of_text = train_on(2, flags(page, "text"));
  ASSERT_EQ(of_text.exit_code, 0) << of_text.errors;
  Words of_tokens = flags(tokens, "tokens_run");
  std::erase(of_tokens, "--sample_length=20");
  const ProgramEnd end = train_on(2, of_tokens);
  ASSERT_EQ(end.exit_code, 0) << end.errors;
  EXPECT_THAT(end.output, Not(HasSubstr("sample:")));
  const std::vector<double> losses = losses_in(folder / "tokens_run/metrics.jsonl");
  EXPECT_EQ(losses.size(), 6U + 2U + 1U);  // Steps and evaluations, and the last validation again at the end.
  EXPECT_EQ(losses, losses_in(folder / "text/metrics.jsonl"));
  const auto expected = files::read_safetensors(folder / "text/model.safetensors").tensors;
  for (const auto& [name, tensor] : files::read_safetensors(folder / "tokens_run/model.safetensors").tensors) {
    EXPECT_TRUE(tensor.equal(expected.at(name))) << name;
  }
  const ProgramEnd evaluated = train_on(2, {"--evaluate=" + folder / "tokens_run/model.safetensors", "--data=" + tokens,
                                            "--batch_size=12", "--eval_batches=1"});
  ASSERT_EQ(evaluated.exit_code, 0) << evaluated.errors;
  EXPECT_THAT(end.output, HasSubstr(evaluated.output));
}

TEST_F(TokenFilesOfAText, TheVocabularyMayBeLarger) {
  Words words = flags(tokens, "large") + Words{"--vocabulary=300", "--steps=1"};
  std::erase(words, "--sample_length=20");
  const ProgramEnd end = train_alone(words);
  ASSERT_EQ(end.exit_code, 0) << end.errors;
  EXPECT_EQ(files::read_safetensors(folder / "large/model.safetensors").tensors.at("token_embedding.weight").size(0),
            300);
}

// The seed decides which rank reads it first; the launcher ends with that rank's code.
TEST_F(TokenFilesOfAText, ATokenOutsideTheVocabularyEndsTheTrainingThatReadsIt) {
  Words words = small_gpt() + fixed_bits() + Words{"--data=" + tokens, "--vocabulary=20"};
  std::erase(words, "--sample_length=20");
  const ProgramEnd end = train_on(2, words);
  EXPECT_EQ(end.exit_code, 4) << end.errors;
  EXPECT_THAT(end.errors, AllOf(HasSubstr(tokens + "/page_train_"), HasSubstr(": byte "),
                                HasSubstr("but the vocabulary has 20 tokens, 0..19")));
}

TEST_F(TokenFilesOfAText, OtherTokensAreNotResumed) {
  Words words = small_gpt() + Words{"--data=" + tokens, "--resume", "--checkpoint_dir=" + folder / "checkpoints"};
  std::erase(words, "--sample_length=20");
  ASSERT_EQ(train_alone(words).exit_code, 0);
  EXPECT_EQ(train_alone(words).exit_code, 0);
  folder.write("tokens/page_train_999.bin", gpt2_file(std::vector<uint16_t>(40, 1)));
  expect_one_line(train_alone(words), 2, "data_hash: is ");
}

// Each rank fails before the ranks meet, so each prints the error.
TEST_F(TokenFilesOfAText, ADamagedFileEndsAllRanks) {
  std::string file = files::read_file(tokens + "/page_train_100.bin");
  file[4] = 9;
  folder.write("tokens/page_train_100.bin", file);
  const ProgramEnd end = train_on(2, {"--data=" + tokens});
  EXPECT_EQ(end.exit_code, 4) << end.errors;
  EXPECT_THAT(end.errors, HasSubstr(tokens + "/page_train_100.bin: byte 4: has the version 9"));
}

// The digits as IDX files, and the same numbers in the other two formats.
class DigitsInFolders : public ::testing::TestWithParam<int> {
 protected:
  DigitsInFolders() {
    write_digits(idx);
    digit_net().save(idx / "net.pt");
    const data::IdxImages images({.folder = idx.path()});
    const auto all = [](int64_t size) { return at::arange(size, at::kLong); };
    const auto indices = [](const at::Tensor& list) {
      return at::IntArrayRef(list.const_data_ptr<int64_t>(), static_cast<size_t>(list.numel()));
    };
    const at::Tensor every = all(images.training_size());
    const models::Batch training = images.training_batch(indices(every));
    const models::Batch held_out = images.held_out_batch(indices(every.slice(0, 0, images.held_out_size())));
    write_tensors(safetensors, "train-1", training.inputs.slice(0, 0, 150), training.targets.slice(0, 0, 150));
    write_tensors(safetensors, "train-2", training.inputs.slice(0, 150), training.targets.slice(0, 150));
    write_tensors(safetensors, "validation", held_out.inputs, held_out.targets);
    write_npy(npy, "train", training.inputs, training.targets.to(at::kInt));
    write_npy(npy, "validation", held_out.inputs, held_out.targets.to(at::kInt));
  }

  // The file of the model that a training with these flags writes.
  std::string trained(const TemporaryFolder& data, const Words& model) const {
    const Words flags = model + fixed_bits() +
                        Words{"--data=" + data.path().string(), "--batch_size=12", "--steps=5",
                              "--output_dir=" + idx / "run", "--overwrite"};
    const ProgramEnd end = GetParam() == 1 ? train_alone(flags) : train_on(GetParam(), flags);
    EXPECT_EQ(end.exit_code, 0) << end.errors;
    return end.exit_code == 0 ? files::read_file(idx / "run/model.safetensors") : end.errors;
  }

  const TemporaryFolder idx;
  const TemporaryFolder safetensors;
  const TemporaryFolder npy;
};

TEST_P(DigitsInFolders, TrainToTheSameBits) {
  for (const Words& model :
       {Words{"--model=mlp", "--hidden=16"}, Words{"--model=" + idx / "net.pt", "--loss=cross_entropy"}}) {
    const std::string expected = trained(idx, model);
    EXPECT_TRUE(trained(safetensors, model) == expected) << model[0];
    EXPECT_TRUE(trained(npy, model) == expected) << model[0];
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, DigitsInFolders, ::testing::Values(1, 2));

class SmallTensors : public ::testing::Test {
 protected:
  SmallTensors() {
    write_tensors(folder, "train", at::ones({20, 8, 8}), at::arange(20) % 3);
    write_tensors(folder, "validation", at::ones({6, 8, 8}), at::arange(6) % 3);
  }
  const TemporaryFolder folder;
  const std::string data = "--data=" + folder.path().string();
};

TEST_F(SmallTensors, AreForClassifiers) {
  const Words mlp = {
      data, "--model=mlp", "--hidden=4", "--batch_size=4", "--steps=2", "--output_dir=" + folder / "run"};
  ASSERT_EQ(train_alone(mlp).exit_code, 0);
  const std::string evaluate = "--evaluate=" + folder / "run/model.safetensors";
  EXPECT_EQ(train_alone({evaluate, data}).exit_code, 0);
  write_tensors(folder, "validation", at::ones({6, 8, 8}), at::arange(6));
  expect_one_line(train_alone({evaluate, data}), 2, "has 3 classes, but the data has 6");
}

TEST_F(SmallTensors, WhatContradictsItselfEndsAllRanks) {
  write_tensors(folder, "train-2", at::ones({20, 8, 7}), at::arange(20) % 3);
  const std::string line = folder / "train.safetensors: byte ";
  const ProgramEnd end = train_on(2, {data, "--model=mlp"});
  EXPECT_EQ(end.exit_code, 4) << end.errors;
  EXPECT_THAT(end.errors, AllOf(HasSubstr(line),
                                HasSubstr("inputs are Float of the shape [8, 8] for each sample, but "
                                          "those of "),
                                HasSubstr("are Float of [8, 7]")));
}

}  // namespace
}  // namespace narrowcast::testing
