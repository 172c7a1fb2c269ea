#include "trainer/train/data/dataset.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include <narrowcast/errors.h>
#include "tests/support/data_files.h"
#include "tests/support/digits.h"
#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"
#include "tests/trainer/train/training/small_text.h"
#include "trainer/base/files/open_file.h"

namespace narrowcast::data {
namespace {

using testing::error_message;
using testing::TemporaryFolder;

TEST(ReadData, ATextIsCutAsTheModelThatFitsItWantsIt) {
  const TemporaryFolder folder;
  const std::string path = folder.write("abc.txt", testing::verse());
  models::ModelOptions sizes;
  const ReadData read = read_data({.model = "char_gpt", .paths = {path}}, [&](const models::ModelOptions& of_data) {
    sizes = of_data;
    return 7;
  });
  EXPECT_EQ(sizes, models::ModelOptions({{"vocabulary_size", static_cast<int64_t>(read.vocabulary.size())}}));
  EXPECT_EQ(read.dataset->training_batch({0}).inputs.size(1), 7);
  EXPECT_EQ(read.name, path);
  EXPECT_NE(read.hash, 0U);
  EXPECT_GT(read.bigram_entropy.value(), 0);
}

TEST(ReadData, WhatTheModelDoesNotTakeIsNamed) {
  const auto error = [](const DataRequest& request) {
    return error_message<c10::ValueError>([&] { read_data(request, [](const models::ModelOptions&) { return 1; }); });
  };
  EXPECT_EQ(error({.model = "mlp", .paths = {"a", "b"}}), "data: mlp needs one folder of IDX files, but 2 are given");
  EXPECT_EQ(error({.model = "ddp_comm_hook_task", .paths = {}}), "data: ddp_comm_hook_task takes no data");
}

TEST(ReadData, TokenFilesAreReadForABundledModelsVocabularyOnly) {
  const TemporaryFolder folder;
  folder.write("train.bin", testing::bytes_of<uint16_t>({1, 2, 3, 40}));
  folder.write("val.bin", testing::bytes_of<uint16_t>({4, 5, 6}));
  const auto sizes_for = [&](const std::string& model, std::optional<int64_t> vocabulary_size) {
    models::ModelOptions told;
    const ReadData read = read_data(
        {.model = model, .paths = {folder.path().string()}, .vocabulary = {}, .vocabulary_size = vocabulary_size},
        [&](const models::ModelOptions& sizes) {
          told = sizes;
          return 2;
        });
    EXPECT_EQ(read.dataset->training_batch({0}).inputs.size(1), 2);
    EXPECT_EQ(read.name, folder.path().string());
    EXPECT_TRUE(read.vocabulary.empty() && !read.bigram_entropy.has_value());
    return told;
  };
  EXPECT_EQ(sizes_for("char_gpt", {}), models::ModelOptions({{"vocabulary_size", 41}}));
  EXPECT_EQ(sizes_for("char_gpt", 50257), models::ModelOptions({{"vocabulary_size", 50257}}));
  EXPECT_EQ(sizes_for("net.pt", 41), models::ModelOptions({{"vocabulary_size", 41}}));
  EXPECT_EQ(error_message<c10::ValueError>([&] { sizes_for("net.pt", 0); }),
            "vocabulary: must be at least 1, but is 0");
  EXPECT_EQ(error_message<c10::ValueError>([&] { sizes_for("net.pt", {}); }),
            "vocabulary: must be given with token files for net.pt: the model's file does not contain its "
            "vocabulary size");
  for (const std::string model : {"char_gpt", "gpt", "net.pt"}) {
    EXPECT_EQ(error_message<CorruptInputError>([&] { sizes_for(model, 3); }),
              folder / "train.bin" + ": byte 4: has the token 3, but the vocabulary has 3 tokens, 0..2");
  }
}

TEST(ReadData, TensorsShapeAClassifierAndNoModule) {
  const TemporaryFolder folder;
  testing::write_tensors(folder, "train", at::ones({3, 2, 5}, at::kByte), at::tensor({0, 6, 1}, at::kShort));
  testing::write_tensors(folder, "validation", at::ones({1, 2, 5}, at::kByte), at::tensor({2}, at::kShort));
  const auto sizes_for = [&](const std::string& model) {
    models::ModelOptions told;
    const ReadData read =
        read_data({.model = model, .paths = {folder.path().string()}}, [&](const models::ModelOptions& sizes) {
          told = sizes;
          return 1;
        });
    EXPECT_EQ(read.dataset->training_size(), 3);
    EXPECT_NE(read.hash, 0U);
    return told;
  };
  EXPECT_EQ(sizes_for("mlp"), models::ModelOptions({{"inputs", 10}, {"classes", 7}}));
  EXPECT_EQ(sizes_for("net.pt"), models::ModelOptions());
  testing::write_tensors(folder, "train", at::ones({3, 2}, at::kInt), at::ones({3}));
  testing::write_tensors(folder, "validation", at::ones({3, 2}, at::kInt), at::ones({3}));
  EXPECT_NO_THROW(sizes_for("net.pt"));
  EXPECT_EQ(error_message<c10::ValueError>([&] { sizes_for("mlp"); }),
            "data: mlp needs inputs that are uint8 or floating-point, unlike the inputs in " + folder.path().string());
}

// Letters as well as digits, as in EMNIST.
TEST(ReadData, ImagesOfAnyClassesAreAModules) {
  const TemporaryFolder folder;
  testing::write_digits(folder);
  std::string labels = files::read_file(folder / "t10k-labels-idx1-ubyte");
  labels.back() = 61;
  folder.write("t10k-labels-idx1-ubyte", labels);
  const auto read = [&](const std::string& model) {
    return read_data({.model = model, .paths = {folder.path().string()}},
                     [](const models::ModelOptions&) { return 1; });
  };
  EXPECT_EQ(read("net.pt").dataset->class_bound(), 62);
  EXPECT_THAT(error_message<CorruptInputError>([&] { read("mlp"); }),
              ::testing::HasSubstr("label 39 is 61, but must be in 0..9"));
}

TEST(DataKind, IsTheModelsOrWhatTheFilesSay) {
  const TemporaryFolder folder;
  EXPECT_EQ(data_kind("mlp", {"book.txt"}), models::DataKind::kImages);
  EXPECT_EQ(data_kind("ddp_comm_hook_task", {}), models::DataKind::kNone);
  EXPECT_EQ(data_kind("net.pt", {}), models::DataKind::kText);
  EXPECT_EQ(data_kind("net.pt", {folder.path().string()}), models::DataKind::kText);
  folder.write("train-images-idx3-ubyte.gz", "");
  EXPECT_EQ(data_kind("net.pt", {folder.path().string()}), models::DataKind::kImages);
  EXPECT_EQ(data_kind("net.pt", {folder.path().string(), "book.txt"}), models::DataKind::kText);
  EXPECT_EQ(error_message<c10::ValueError>([] { data_kind("net.pth", {}); }),
            "model: unknown name 'net.pth'; known: char_gpt, ddp_comm_hook_task, gpt, mlp");
}

TEST(DataKind, AFolderThatTheModelDoesNotTakeIsNamed) {
  const TemporaryFolder folder;
  const std::string path = folder.path().string();
  const auto error = [&](const std::string& model) {
    return error_message<c10::ValueError>([&] { data_kind(model, {path}); });
  };
  folder.write("train.bin", "");
  EXPECT_EQ(data_kind("char_gpt", {path}), models::DataKind::kText);
  EXPECT_EQ(data_kind("net.pt", {path}), models::DataKind::kText);
  EXPECT_TRUE(holds_tokens({path}));
  EXPECT_EQ(error("mlp"),
            "data: mlp learns from images and other samples with classes, but " + path + " holds token files");
  std::filesystem::rename(folder / "train.bin", folder / "train.safetensors");
  EXPECT_EQ(data_kind("mlp", {path}), models::DataKind::kImages);
  EXPECT_EQ(data_kind("net.pt", {path}), models::DataKind::kImages);
  EXPECT_EQ(data_kind("ddp_comm_hook_task", {path}), models::DataKind::kNone);
  EXPECT_FALSE(holds_tokens({path}));
  EXPECT_EQ(error("char_gpt"),
            "data: char_gpt learns from text and tokens, but " + path + " holds tensors (safetensors)");
  folder.write("train_inputs.npy", "");
  EXPECT_THROW(data_kind("mlp", {path}), CorruptInputError);
}

// A folder of each format.
class FoldersOfSamples : public ::testing::TestWithParam<std::tuple<std::string, int64_t>> {
 protected:
  FoldersOfSamples() {
    if (format() == "tokens") {
      std::vector<uint16_t> tokens(2000);
      for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<uint16_t>(i * 7919 % 1000);
      folder.write("a_train_0.bin", testing::gpt2_file(tokens));
      folder.write("a_train_1.bin", testing::gpt2_file({tokens.begin(), tokens.begin() + 700}));
      folder.write("a_val_0.bin", testing::gpt2_file(tokens));
      return;
    }
    const at::Tensor inputs = at::arange(500 * 6).view({500, 2, 3});
    const at::Tensor targets = at::arange(500);
    const auto write = format() == "npy" ? testing::write_npy : testing::write_tensors;
    write(folder, "train", inputs, targets);
    write(folder, "validation", inputs, targets);
  }
  std::string format() const { return std::get<0>(GetParam()); }
  ReadData read() const {
    return read_data({.model = "net.pt", .paths = {folder.path().string()}, .vocabulary_size = 1000},
                     [](const models::ModelOptions&) { return 16; });
  }
  const TemporaryFolder folder;
};

TEST_P(FoldersOfSamples, PartsOfAllRanksMakeTheBatchOfOne) {
  const int64_t world_size = std::get<1>(GetParam());
  const ReadData one = read();
  const SampleOrder order(one.dataset->training_size(), 5);
  const BatchPlan alone({.global_batch = 24});
  const BatchPlan shared({.global_batch = 24, .world_size = world_size, .accumulation_steps = 2});
  for (int64_t step = 0; step < 30; ++step) {  // Past the end of an epoch of 500 samples.
    const models::Batch whole = one.dataset->training_batch(alone.samples(order, 0, step, 0));
    std::vector<at::Tensor> inputs;
    std::vector<at::Tensor> targets;
    for (int64_t rank = 0; rank < world_size; ++rank) {
      const ReadData of_rank = read();
      for (int64_t micro_step = 0; micro_step < 2; ++micro_step) {
        const models::Batch part = of_rank.dataset->training_batch(shared.samples(order, rank, step, micro_step));
        inputs.push_back(part.inputs);
        targets.push_back(part.targets);
      }
    }
    EXPECT_TRUE(at::cat(inputs).equal(whole.inputs)) << step;
    EXPECT_TRUE(at::cat(targets).equal(whole.targets)) << step;
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, FoldersOfSamples,
                         ::testing::Combine(::testing::Values("tokens", "safetensors", "npy"),
                                            ::testing::Values(1, 2, 3, 4)),
                         [](const auto& info) {
                           return std::get<0>(info.param) + "_world" + std::to_string(std::get<1>(info.param));
                         });

TEST(CheckIndices, AcceptsEveryIndexOfTheSetAndRepeats) {
  EXPECT_NO_THROW(check_indices({0, 4, 4, 1}, 5));
  EXPECT_NO_THROW(check_indices({0}, 1));
}

TEST(CheckIndices, NamesTheRangeAndTheIndexOutsideIt) {
  const auto error = [](at::IntArrayRef indices) {
    return error_message<c10::ValueError>([&] { check_indices(indices, 5); });
  };
  EXPECT_EQ(error({0, 5}), "indices must be in 0..4, but one is 5");
  EXPECT_EQ(error({-1}), "indices must be in 0..4, but one is -1");
  EXPECT_EQ(error({INT64_MIN}), "indices must be in 0..4, but one is -9223372036854775808");
  EXPECT_EQ(error({}), "indices must not be empty");
}

std::vector<int64_t> epoch(const SampleOrder& order, int64_t number) {
  std::vector<int64_t> samples;
  for (int64_t i = 0; i < order.size(); ++i) {
    samples.push_back(order.at(number * order.size() + i));
  }
  return samples;
}

class SampleOrderSizes : public ::testing::TestWithParam<int64_t> {};

TEST_P(SampleOrderSizes, EveryEpochIsAPermutation) {
  const int64_t size = GetParam();
  const SampleOrder order(size, 42);
  for (const int64_t number : {int64_t{0}, int64_t{1}, int64_t{1000000}}) {
    std::vector<bool> seen(static_cast<size_t>(size));
    for (const int64_t sample : epoch(order, number)) {
      ASSERT_TRUE(sample >= 0 && sample < size) << sample;
      ASSERT_FALSE(seen[static_cast<size_t>(sample)]) << sample << " twice in epoch " << number;
      seen[static_cast<size_t>(sample)] = true;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, SampleOrderSizes,
                         ::testing::Values(1, 2, 3, 4, 5, 7, 16, 17, 127, 128, 129, 255, 256, 257, 4097, 1000003));

TEST(SampleOrder, SeedsAndEpochsDiffer) {
  const SampleOrder order(1000, 1);
  EXPECT_NE(epoch(order, 0), epoch(order, 1));
  EXPECT_NE(epoch(order, 0), epoch(SampleOrder(1000, 2), 0));
  // Later epochs of a seed must not equal earlier epochs of a neighbouring seed.
  EXPECT_NE(epoch(order, 1), epoch(SampleOrder(1000, 2), 0));
  EXPECT_EQ(epoch(order, 3), epoch(SampleOrder(1000, 1), 3));
}

TEST(SampleOrder, IsFixedForEver) {  // resumed trainings of later versions need the same order
  const SampleOrder order(10, 0);
  EXPECT_EQ(epoch(order, 0), std::vector<int64_t>({0, 2, 3, 8, 6, 1, 7, 4, 5, 9}));
  EXPECT_EQ(epoch(order, 1), std::vector<int64_t>({2, 5, 8, 6, 7, 1, 0, 3, 9, 4}));
}

TEST(SampleOrder, EachPlaceGetsEachSampleEquallyOften) {
  constexpr int64_t kSize = 10;
  constexpr int64_t kEpochs = 10000;
  const SampleOrder order(kSize, 7);
  std::vector<std::vector<int64_t>> counts(kSize, std::vector<int64_t>(kSize));
  for (int64_t number = 0; number < kEpochs; ++number) {
    for (int64_t i = 0; i < kSize; ++i) {
      ++counts[static_cast<size_t>(i)][static_cast<size_t>(order.at(number * kSize + i))];
    }
  }
  // Each of the 100 counts is binomial with mean 1000 and deviation sqrt(1000 * 0.9) = 30. All are within five
  // deviations. By chance this fails once in 17000 seeds, and this seed is fixed.
  for (const auto& row : counts) {
    for (const int64_t count : row) {
      EXPECT_NEAR(count, 1000, 150);
    }
  }
}

TEST(SampleOrder, NeighboursAreScattered) {
  constexpr int64_t kSize = 100000;
  const SampleOrder order(kSize, 3);
  double sum = 0;
  for (int64_t i = 0; i + 1 < kSize; ++i) {
    sum += static_cast<double>(std::llabs(order.at(i) - order.at(i + 1)));
  }
  // The distance of two random points of 0..n has the mean n / 3 and the deviation n / sqrt(18). So the mean of n - 1
  // distances is within 5 n / sqrt(18 n) = 373 of n / 3: five deviations, as neighbouring distances are nearly
  // independent.
  EXPECT_NEAR(sum / (kSize - 1), kSize / 3.0, 5 * kSize / std::sqrt(18.0 * kSize));
}

TEST(SampleOrder, HugeSizesStayInRange) {
  const SampleOrder order(INT64_MAX, 5);
  std::set<int64_t> samples;
  for (int64_t i = 0; i < 1000; ++i) {
    samples.insert(order.at(i));
  }
  EXPECT_EQ(samples.size(), 1000);
  EXPECT_GE(*samples.begin(), 0);
}

TEST(SampleOrder, WrongValuesAreNamed) {
  EXPECT_EQ(error_message<c10::ValueError>([] { SampleOrder(0, 1); }), "size must be at least 1, but is 0");
  EXPECT_EQ(error_message<c10::ValueError>([] { SampleOrder(3, 1).at(-1); }), "position must be at least 0, but is -1");
}

constexpr int64_t kGlobalBatch = 48;

class BatchPlanWorlds : public ::testing::TestWithParam<std::tuple<int64_t, int64_t>> {};

TEST_P(BatchPlanWorlds, PartsInRankOrderMakeTheGlobalOrder) {
  const auto [world_size, accumulation_steps] = GetParam();
  const SampleOrder order(101, 9);  // steps cross the borders of epochs
  const BatchPlan plan(
      {.global_batch = kGlobalBatch, .world_size = world_size, .accumulation_steps = accumulation_steps});
  int64_t position = 0;
  for (int64_t step = 0; step < 12; ++step) {
    for (int64_t rank = 0; rank < world_size; ++rank) {
      for (int64_t micro_step = 0; micro_step < accumulation_steps; ++micro_step) {
        const std::vector<int64_t> samples = plan.samples(order, rank, step, micro_step);
        ASSERT_EQ(samples.size(), kGlobalBatch / world_size / accumulation_steps);
        for (const int64_t sample : samples) {
          ASSERT_EQ(sample, order.at(position)) << "position " << position;
          ++position;
        }
      }
    }
  }
  EXPECT_EQ(position, 12 * kGlobalBatch);
}

INSTANTIATE_TEST_SUITE_P(Worlds, BatchPlanWorlds,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4, 6), ::testing::Values(1, 2, 4)));

TEST(BatchPlan, MicroBatchIsTheShareOfOneForwardPass) {
  EXPECT_EQ(BatchPlan({.global_batch = 24, .world_size = 3, .accumulation_steps = 4}).micro_batch(), 2);
  EXPECT_EQ(BatchPlan({.global_batch = 5}).micro_batch(), 5);
}

std::string plan_error(const BatchPlanOptions& options) {
  return error_message<c10::ValueError>([&] { BatchPlan plan(options); });
}

TEST(BatchPlan, IndivisibleBatchNamesAllThree) {
  EXPECT_EQ(plan_error({.global_batch = 10, .world_size = 2, .accumulation_steps = 3}),
            "global_batch must be divisible by world_size * accumulation_steps, but is 10 with world_size 2 and "
            "accumulation_steps 3");
  EXPECT_EQ(plan_error({.global_batch = 1, .world_size = 2}),
            "global_batch must be divisible by world_size * accumulation_steps, but is 1 with world_size 2 and "
            "accumulation_steps 1");
  EXPECT_NE(plan_error({.global_batch = 6, .world_size = INT64_MAX, .accumulation_steps = INT64_MAX}),
            "nothing was thrown");
}

TEST(BatchPlan, DividesAmongRanksAndTheirStepsWithoutRemainder) {
  EXPECT_TRUE(divides_evenly({.global_batch = 24, .world_size = 3, .accumulation_steps = 4}));
  EXPECT_FALSE(divides_evenly({.global_batch = 24, .world_size = 5}));
  EXPECT_FALSE(divides_evenly({.global_batch = 24, .world_size = 3, .accumulation_steps = 5}));
  EXPECT_FALSE(divides_evenly({.global_batch = 24, .world_size = INT64_MAX, .accumulation_steps = INT64_MAX}));
  EXPECT_EQ(samples_per_rank({.global_batch = 24, .world_size = 3, .accumulation_steps = 4}), 8);
}

TEST(BatchPlan, ValuesBelowOneAreNamed) {
  EXPECT_EQ(plan_error({.global_batch = 0}), "global_batch must be at least 1, but is 0");
  EXPECT_EQ(plan_error({.world_size = 0}), "world_size must be at least 1, but is 0");
  EXPECT_EQ(plan_error({.accumulation_steps = -2}), "accumulation_steps must be at least 1, but is -2");
}

TEST(BatchPlan, PlacesOutsideThePlanAreNamed) {
  const SampleOrder order(10, 1);
  const BatchPlan plan({.global_batch = 4, .world_size = 2, .accumulation_steps = 2});
  const auto error = [&](int64_t rank, int64_t step, int64_t micro_step) {
    return error_message<c10::ValueError>([&] { plan.samples(order, rank, step, micro_step); });
  };
  EXPECT_EQ(error(2, 0, 0), "rank must be in 0..1, but is 2");
  EXPECT_EQ(error(-1, 0, 0), "rank must be in 0..1, but is -1");
  EXPECT_EQ(error(0, -1, 0), "step must be at least 0, but is -1");
  EXPECT_EQ(error(0, 0, 2), "micro_step must be in 0..1, but is 2");
}

}  // namespace
}  // namespace narrowcast::data
