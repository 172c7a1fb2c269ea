#include "trainer/train/data/data_folder.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <ostream>

#include <narrowcast/errors.h>
#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"

namespace narrowcast::data {
namespace {

using narrowcast::testing::error_message;
using narrowcast::testing::TemporaryFolder;

struct NamedFormat {
  std::string file;
  DataFormat format;
};

void PrintTo(const NamedFormat& named, std::ostream* out) { *out << named.file; }

class DataFormats : public ::testing::TestWithParam<NamedFormat> {};

TEST_P(DataFormats, GoByTheFilesNames) {
  const TemporaryFolder folder;
  folder.write("readme.md", "Not a sample.");
  folder.write("below/train.bin", "Nor is what lies below.");
  folder.write("below/train_inputs.npy", "");
  folder.write(GetParam().file, "");
  EXPECT_EQ(format_of({folder.path().string()}), GetParam().format);
  EXPECT_EQ(format_of({folder.path().string(), folder.path().string()}), DataFormat::kText);
}

// Several paths count as text, even with a folder among them.
TEST_P(DataFormats, AFileInsteadOfItsFolderIsNamed) {
  const TemporaryFolder folder;
  const std::string file = folder.write(GetParam().file, "a\0b");
  const std::string text = folder.write("a.txt", "text");
  for (const std::vector<std::string>& paths : {std::vector{file}, {text, file}, {folder.path().string(), file}}) {
    const std::string message = error_message<c10::ValueError>([&] { EXPECT_EQ(format_of(paths), DataFormat::kText); });
    if (GetParam().format == DataFormat::kText) {
      EXPECT_EQ(message, "nothing was thrown");
    } else {
      EXPECT_EQ(message, "data: " + file + " is named like a folder's file of " + describe(GetParam().format) +
                             ": give the folder " + folder.path().string() + " instead");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Names, DataFormats,
    ::testing::Values(NamedFormat{"train.bin", DataFormat::kTokens}, NamedFormat{"val.bin", DataFormat::kTokens},
                      NamedFormat{"tiny_shakespeare_val.bin", DataFormat::kTokens},
                      NamedFormat{"TinyStories_train.bin", DataFormat::kTokens},
                      NamedFormat{"fineweb_train_000001.bin", DataFormat::kTokens},
                      NamedFormat{"fineweb_val_000000.bin", DataFormat::kTokens},
                      NamedFormat{"train.safetensors", DataFormat::kSafetensors},
                      NamedFormat{"train-00001-of-00002.safetensors", DataFormat::kSafetensors},
                      NamedFormat{"validation.safetensors", DataFormat::kSafetensors},
                      NamedFormat{"train_inputs.npy", DataFormat::kNpy},
                      NamedFormat{"validation_targets.npy", DataFormat::kNpy},
                      NamedFormat{"train-images-idx3-ubyte", DataFormat::kIdx},
                      NamedFormat{"train-images-idx3-ubyte.gz", DataFormat::kIdx},
                      NamedFormat{"model.safetensors", DataFormat::kText}, NamedFormat{"inputs.npy", DataFormat::kText},
                      NamedFormat{"trains.bin", DataFormat::kText}, NamedFormat{"train.txt", DataFormat::kText},
                      NamedFormat{"fineweb_training_1.bin", DataFormat::kText}));

TEST(DataFormatOf, WhatCannotBeLookedUpIsText) {
  const TemporaryFolder folder;
  EXPECT_EQ(format_of({}), DataFormat::kText);
  EXPECT_EQ(format_of({folder / "none"}), DataFormat::kText);
  EXPECT_EQ(format_of({folder.path().string()}), DataFormat::kText);
}

TEST(DataFormatOf, TwoFormatsInOneFolderAreNamed) {
  const TemporaryFolder folder;
  folder.write("train.bin", "");
  folder.write("train.safetensors", "");
  EXPECT_EQ(
      error_message<CorruptInputError>([&] { format_of({folder.path().string()}); }),
      folder.path().string() +
          ": holds data of two formats, 'train.bin' and 'train.safetensors'; use a separate folder for each format");
}

TEST(ListFiles, SortsEachPartByName) {
  const TemporaryFolder folder;
  for (const std::string name : {"x_train_10.bin", "x_train_02.bin", "x_val_0.bin", "other.bin", "below/x_train_1.bin",
                                 "._x_train_1.bin", ".train.safetensors"}) {
    folder.write(name, "");
  }
  EXPECT_EQ(format_of({folder.path().string()}), DataFormat::kTokens);
  const DataFiles files = list_files(folder.path().string(), DataFormat::kTokens);
  EXPECT_EQ(files.training, std::vector<std::string>({folder / "x_train_02.bin", folder / "x_train_10.bin"}));
  EXPECT_EQ(files.validation, std::vector<std::string>({folder / "x_val_0.bin"}));
}

TEST(ListFiles, AMissingPartIsNamed) {
  const TemporaryFolder folder;
  const std::string path = folder.path().string();
  const auto error = [&](DataFormat format) {
    return error_message<CorruptInputError>([&] { list_files(path, format); });
  };
  EXPECT_EQ(error(DataFormat::kSafetensors), path + ": has no train*.safetensors");
  folder.write("train.safetensors", "");
  EXPECT_EQ(error(DataFormat::kSafetensors), path + ": has no validation*.safetensors");
  folder.write("train.bin", "");
  EXPECT_EQ(error(DataFormat::kTokens), path + ": has no val.bin or *_val.bin or *_val_*.bin");
  folder.write("train_inputs.npy", "");
  EXPECT_EQ(error(DataFormat::kNpy), path + ": has no validation*_inputs.npy or validation*_targets.npy");
}

TEST(ListFiles, AFileOfBothPartsIsNamed) {
  const TemporaryFolder folder;
  folder.write("x_train_y_val_0.bin", "");
  EXPECT_EQ(error_message<CorruptInputError>([&] { list_files(folder.path().string(), DataFormat::kTokens); }),
            folder / "x_train_y_val_0.bin" + ": has a name that matches both training and validation data");
}

}  // namespace
}  // namespace narrowcast::data
