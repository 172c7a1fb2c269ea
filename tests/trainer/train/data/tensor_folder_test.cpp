#include "trainer/train/data/tensor_folder.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <ostream>
#include <tuple>
#include <vector>

#include <narrowcast/errors.h>
#include "tests/support/data_files.h"
#include "tests/support/error_message.h"
#include "trainer/base/files/open_file.h"

namespace narrowcast::data {
namespace {

using namespace narrowcast::testing;

// Sample i has the inputs [[10 i, 10 i + 1, 10 i + 2]] and the target i.
at::Tensor inputs_of(int64_t begin, int64_t end, at::ScalarType dtype = at::kFloat) {
  return (at::arange(begin, end, at::kLong).view({-1, 1, 1}) * 10 + at::arange(3)).to(dtype);
}

at::Tensor targets_of(int64_t begin, int64_t end, at::ScalarType dtype = at::kLong) {
  return at::arange(begin, end, at::kLong).to(dtype);
}

class TensorFolders : public ::testing::TestWithParam<DataFormat> {
 protected:
  // Twelve samples to train on, in several files, and two for validation.
  TensorFolders() {
    rewrite("train-2", inputs_of(7, 12), targets_of(7, 12));
    rewrite("train-1", inputs_of(0, 7), targets_of(0, 7));
    rewrite("train-1b", inputs_of(7, 7), targets_of(7, 7));
    rewrite("validation", inputs_of(12, 14), targets_of(12, 14));
  }

  bool is_npy() const { return GetParam() == DataFormat::kNpy; }
  TensorFolder open() const { return TensorFolder(folder.path().string(), GetParam()); }

  // Replaces a part.
  void rewrite(const std::string& part, const at::Tensor& inputs, const at::Tensor& targets) const {
    if (is_npy()) {
      write_npy(folder, part, inputs, targets);
    } else {
      write_tensors(folder, part, inputs, targets);
    }
  }

  // The error of opening the folder, with the folder's path replaced by FOLDER.
  std::string error() const {
    std::string message = error_message<CorruptInputError>([&] { open(); });
    const std::string path = folder.path().string();
    for (size_t at = message.find(path); at != std::string::npos; at = message.find(path)) {
      message.replace(at, path.size(), "FOLDER");
    }
    return message;
  }

  const TemporaryFolder folder;
};

TEST_P(TensorFolders, SamplesOfAllFilesAreOneRowInTheOrderOfTheirNames) {
  const TensorFolder tensors = open();
  EXPECT_EQ(tensors.training_size(), 12);
  EXPECT_EQ(tensors.held_out_size(), 2);
  const models::Batch batch = tensors.training_batch({7, 0, 6, 11, 7});
  EXPECT_EQ(batch.inputs.sizes(), at::IntArrayRef({5, 1, 3}));
  EXPECT_TRUE(batch.inputs.select(1, 0).select(1, 2).equal(at::tensor({72, 2, 62, 112, 72}, at::kFloat)));
  EXPECT_TRUE(batch.targets.equal(at::tensor({7, 0, 6, 11, 7}, at::kLong)));
  EXPECT_TRUE(tensors.held_out_batch({1}).targets.equal(at::tensor({13}, at::kLong)));
  EXPECT_EQ(tensors.inputs_per_sample(), 3);
  EXPECT_EQ(tensors.classes(), 14);
  EXPECT_TRUE(tensors.has_pixels());
}

TEST_P(TensorFolders, IndicesAreChecked) {
  const TensorFolder tensors = open();
  EXPECT_EQ(error_message<c10::ValueError>([&] { tensors.training_batch({12}); }),
            "indices must be in 0..11, but one is 12");
  EXPECT_EQ(error_message<c10::ValueError>([&] { tensors.held_out_batch({}); }), "indices must not be empty");
}

TEST_P(TensorFolders, AnyByteChangesTheHash) {
  const uint64_t whole = open().content_hash();
  EXPECT_EQ(open().content_hash(), whole);
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    if (entry.path().stem().string().starts_with("train-1b")) continue;  // It has no samples.
    const std::string file = files::read_file(entry.path());
    std::string other = file;
    other.back() ^= 1;
    folder.write(entry.path().filename(), other);
    EXPECT_NE(open().content_hash(), whole) << entry.path();
    folder.write(entry.path().filename(), file);
  }
  EXPECT_EQ(open().content_hash(), whole);
}

TEST_P(TensorFolders, InputsAndTargetsAreEquallyMany) {
  rewrite("validation", inputs_of(0, 3), targets_of(0, 2));
  EXPECT_EQ(error(), is_npy() ? "FOLDER/validation_targets.npy: byte 128: there are 2 targets for 3 inputs"
                              : "FOLDER/validation.safetensors: byte 136: there are 2 targets for 3 inputs");
}

TEST_P(TensorFolders, ValidationIsLikeTraining) {
  const std::string inputs = is_npy() ? "validation_inputs.npy: byte 128" : "validation.safetensors: byte 152";
  const std::string first = is_npy() ? "train-1_inputs.npy" : "train-1.safetensors";
  rewrite("validation", inputs_of(0, 2).view({2, 3}), targets_of(0, 2));
  EXPECT_EQ(error(), "FOLDER/" + inputs + ": inputs are Float of the shape [3] for each sample, but those of FOLDER/" +
                         first + " are Float of [1, 3]");
  rewrite("validation", inputs_of(0, 2, at::kByte), targets_of(0, 2));
  EXPECT_TRUE(error().ends_with(": inputs are Byte of the shape [1, 3] for each sample, but those of FOLDER/" + first +
                                " are Float of [1, 3]"))
      << error();
  rewrite("validation", inputs_of(0, 2), targets_of(0, 2, at::kInt));
  EXPECT_TRUE(error().find(": targets are Int of the shape [] for each sample") != std::string::npos) << error();
}

TEST_P(TensorFolders, SamplesMustBeThere) {
  rewrite("validation", inputs_of(0, 0), targets_of(0, 0));
  EXPECT_EQ(error(), is_npy() ? "FOLDER/validation_inputs.npy: has no samples"
                              : "FOLDER/validation.safetensors: has no samples");
  rewrite("validation", at::ones({}), targets_of(0, 1));
  EXPECT_TRUE(error().ends_with(": inputs have no dimension, but need a first dimension that counts the samples"));
  rewrite("validation", at::ones({2, 0}), targets_of(0, 2));
  EXPECT_TRUE(error().ends_with(": inputs have the shape [2, 0], in which a sample has no elements")) << error();
}

TEST_P(TensorFolders, ClassesAreIntegersFrom0) {
  rewrite("validation", inputs_of(0, 2), at::tensor({3, -1}, at::kLong));
  const std::string byte = is_npy() ? "_targets.npy: byte 136" : ".safetensors: byte 144";
  EXPECT_EQ(error_message<CorruptInputError>([&] { open().classes(); }),
            folder / "validation" + byte + ": has the class -1, but classes count from 0");
}

// Several classes per sample, as for tokens or pixels.
TEST_P(TensorFolders, ClassesHaveABound) {
  EXPECT_EQ(open().class_bound(), 14);
  rewrite("train", inputs_of(0, 12), at::arange(24).view({12, 2}));
  rewrite("validation", inputs_of(0, 2), at::tensor({7, 5, 3, -100}, at::kLong).view({2, 2}));
  rewrite("train-1", inputs_of(0, 1), at::ones({1, 2}, at::kLong));
  rewrite("train-1b", inputs_of(0, 0), at::ones({0, 2}, at::kLong));
  rewrite("train-2", inputs_of(0, 1), at::ones({1, 2}, at::kLong));
  const std::string byte = is_npy() ? "_targets.npy: byte 152" : ".safetensors: byte 160";
  EXPECT_EQ(error_message<CorruptInputError>([&] { open().class_bound(); }),
            folder / "validation" + byte + ": has the class -100, but classes count from 0");
  rewrite("validation", inputs_of(0, 2), at::ones({2, 2}, at::kLong));
  EXPECT_EQ(open().class_bound(), 24);
}

TEST_P(TensorFolders, EveryCutIsNamed) {
  const std::string name = is_npy() ? "validation_inputs.npy" : "validation.safetensors";
  const std::string whole = files::read_file(folder / name);
  for (size_t length = 0; length < whole.size(); length += length < 16 ? 1 : 13) {
    folder.write(name, whole.substr(0, length));
    EXPECT_TRUE(error().starts_with("FOLDER/" + name + ": ")) << length << error();
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, TensorFolders, ::testing::Values(DataFormat::kSafetensors, DataFormat::kNpy),
                         [](const auto& info) { return info.param == DataFormat::kNpy ? "npy" : "safetensors"; });

TEST(SafetensorsFolder, WhatIsMissingIsNamed) {
  const TemporaryFolder folder;
  const auto error = [&] {
    return error_message<CorruptInputError>([&] { TensorFolder(folder.path().string(), DataFormat::kSafetensors); });
  };
  files::write_safetensors(folder / "train.safetensors", {.tensors = {{"inputs", at::ones({1, 1})}}, .metadata = {}});
  EXPECT_EQ(error(), folder.path().string() + ": has no validation*.safetensors");
  write_tensors(folder, "validation", at::ones({1, 1}), at::ones({1}));
  EXPECT_EQ(error(), folder / "train.safetensors" + ": byte 8: the header has no tensor 'targets'");
}

TEST(SafetensorsFolder, OtherTensorsAreLeftAlone) {
  const TemporaryFolder folder;
  for (const std::string name : {"train.safetensors", "validation.safetensors"}) {
    files::write_safetensors(folder / name, {.tensors = {{"inputs", at::ones({1, 1})},
                                                         {"targets", at::ones({1})},
                                                         {"ids", at::ones({9}, at::kInt).to(at::kUInt64)},
                                                         {"scales", at::ones({9}).to(at::kFloat8_e4m3fn)}},
                                             .metadata = {{"made", "by hand"}}});
  }
  EXPECT_EQ(TensorFolder(folder.path().string(), DataFormat::kSafetensors).training_size(), 1);
}

TEST(SafetensorsFolder, WhatInt64CannotHoldIsNamed) {
  const TemporaryFolder folder;
  for (const std::string name : {"train", "validation"}) {
    write_tensors(folder, name, at::ones({1, 1}), at::ones({1}, at::kInt).to(at::kUInt64));
  }
  EXPECT_EQ(error_message<CorruptInputError>([&] { TensorFolder(folder.path().string(), DataFormat::kSafetensors); }),
            folder / "train.safetensors" +
                ": byte 136: tensor 'targets' has the dtype U64, whose range exceeds the int64 that modules use");
}

TEST(SafetensorsFolder, ComplexDataAreNamed) {
  const TemporaryFolder folder;
  for (const std::string name : {"train", "validation"}) {
    write_tensors(folder, name, at::ones({1, 1}, at::kComplexFloat), at::ones({1}));
  }
  EXPECT_EQ(error_message<CorruptInputError>([&] { TensorFolder(folder.path().string(), DataFormat::kSafetensors); }),
            folder / "train.safetensors" +
                ": byte 136: tensor 'inputs' has the dtype C64, but complex data is not supported");
}

// A file of another shard does not complete a pair.
TEST(NpyFolder, AFileWithoutItsFellowIsNamed) {
  const TemporaryFolder folder;
  write_npy(folder, "train", at::ones({1, 1}), at::ones({1}));
  folder.write("validation_targets.npy", npy_file(at::ones({1})));
  EXPECT_EQ(error_message<CorruptInputError>([&] { TensorFolder(folder.path().string(), DataFormat::kNpy); }),
            folder / "validation_targets.npy" + ": has no matching file of its inputs");
  write_npy(folder, "validation", at::ones({1, 1}), at::ones({1}));
  folder.write("train-2_inputs.npy", npy_file(at::ones({1, 1})));
  folder.write("train-3_targets.npy", npy_file(at::ones({1})));
  EXPECT_EQ(error_message<CorruptInputError>([&] { TensorFolder(folder.path().string(), DataFormat::kNpy); }),
            folder / "train-2_inputs.npy" + ": has no matching file of its targets");
}

struct Conversion {
  at::ScalarType file;
  at::ScalarType inputs;
  at::ScalarType targets;
};

void PrintTo(const Conversion& conversion, std::ostream* out) { *out << conversion.file; }

class Conversions : public ::testing::TestWithParam<Conversion> {};

TEST_P(Conversions, KeepEveryValue) {
  const TemporaryFolder folder;
  const at::Tensor values = at::tensor({1, 0, 1}, at::kLong).to(GetParam().file);
  write_tensors(folder, "train", values, values);
  write_tensors(folder, "validation", values, values);
  const models::Batch batch = TensorFolder(folder.path().string(), DataFormat::kSafetensors).training_batch({0, 1, 2});
  EXPECT_EQ(batch.inputs.scalar_type(), GetParam().inputs);
  EXPECT_EQ(batch.targets.scalar_type(), GetParam().targets);
  EXPECT_TRUE(batch.inputs.to(at::kDouble).equal(values.to(at::kDouble)));
  EXPECT_TRUE(batch.targets.to(at::kDouble).equal(values.to(at::kDouble)));
}

INSTANTIATE_TEST_SUITE_P(
    All, Conversions,
    ::testing::Values(Conversion{at::kDouble, at::kFloat, at::kFloat}, Conversion{at::kFloat, at::kFloat, at::kFloat},
                      Conversion{at::kHalf, at::kFloat, at::kFloat}, Conversion{at::kBFloat16, at::kFloat, at::kFloat},
                      Conversion{at::kFloat8_e5m2, at::kFloat, at::kFloat},
                      Conversion{at::kFloat8_e4m3fn, at::kFloat, at::kFloat},
                      Conversion{at::kUInt32, at::kLong, at::kLong}, Conversion{at::kUInt16, at::kLong, at::kLong},
                      Conversion{at::kLong, at::kLong, at::kLong}, Conversion{at::kInt, at::kLong, at::kLong},
                      Conversion{at::kShort, at::kLong, at::kLong}, Conversion{at::kChar, at::kLong, at::kLong},
                      Conversion{at::kByte, at::kByte, at::kLong}, Conversion{at::kBool, at::kBool, at::kLong}));

TEST(UnsignedArrays, AreInt64InBatches) {
  const TemporaryFolder folder;
  for (const std::string part : {"train", "validation"}) {
    folder.write(part + "_inputs.npy", npy_file(npy_dictionary("<u2", "(2,)"), std::string("\xff\xff\x01\x00", 4)));
    folder.write(part + "_targets.npy",
                 npy_file(npy_dictionary("<u4", "(2,)"), std::string("\xff\xff\xff\xff\x01\x00\x00\x00", 8)));
  }
  const models::Batch batch = TensorFolder(folder.path().string(), DataFormat::kNpy).training_batch({1, 0});
  EXPECT_TRUE(batch.inputs.equal(at::tensor({int64_t{1}, int64_t{65535}}, at::kLong)));
  EXPECT_TRUE(batch.targets.equal(at::tensor({int64_t{1}, int64_t{4294967295}}, at::kLong)));
}

TEST(Bools, OtherBytesAreNamedWhereTheyAreRead) {
  const TemporaryFolder folder;
  for (const std::string part : {"train", "validation"}) {
    folder.write(part + "_inputs.npy", npy_file(npy_dictionary("|b1", "(2, 2)"), std::string("\0\1\1\2", 4)));
    folder.write(part + "_targets.npy", npy_file(at::ones({2})));
  }
  const TensorFolder tensors(folder.path().string(), DataFormat::kNpy);
  EXPECT_FALSE(tensors.has_pixels());
  EXPECT_NO_THROW(tensors.training_batch({0}));
  EXPECT_EQ(error_message<CorruptInputError>([&] { tensors.training_batch({1}); }),
            folder / "train_inputs.npy" + ": byte 131: must be 0 or 1, because the tensor has the dtype bool");
  EXPECT_EQ(error_message<c10::ValueError>([&] { tensors.classes(); }),
            "data: classes must be one integer per sample, but the targets of " + folder.path().string() +
                " are Float of the shape [2]");
  EXPECT_EQ(tensors.class_bound(), std::nullopt);
}

}  // namespace
}  // namespace narrowcast::data
