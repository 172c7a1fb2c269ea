#include "trainer/train/data/idx_images.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <narrowcast/errors.h>
#include <narrowcast/mlp.h>
#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"
#include "trainer/base/files/open_file.h"

namespace narrowcast::data {
namespace {

using narrowcast::testing::error_message;
using narrowcast::testing::TemporaryFolder;

std::string big_endian(uint32_t number) {
  return {static_cast<char>(number >> 24), static_cast<char>(number >> 16), static_cast<char>(number >> 8),
          static_cast<char>(number)};
}

std::string idx(uint32_t magic, const std::vector<uint32_t>& sizes, const std::string& data) {
  std::string bytes = big_endian(magic);
  for (const uint32_t size : sizes) {
    bytes += big_endian(size);
  }
  return bytes + data;
}

constexpr uint32_t kImagesMagic = 0x803;
constexpr uint32_t kLabelsMagic = 0x801;

// Digits drawn in 5 x 4 pixels: a zero, a one and a seven.
const std::string kDigits =
    ".##.#..##..##..#.##."
    "..#..##...#...#..###"
    "####...#..#..#..#...";

// The drawing's pixels, '#' 255 and '.' 0, `copies` times over.
std::string pixels(int copies) {
  std::string bytes;
  for (int copy = 0; copy < copies; ++copy) {
    for (const char mark : kDigits) {
      bytes.push_back(mark == '#' ? '\xff' : '\0');
    }
  }
  return bytes;
}

class IdxFolder : public ::testing::Test {
 protected:
  IdxFolder() {
    folder_.write("train-images-idx3-ubyte", idx(kImagesMagic, {6, 5, 4}, pixels(2)));
    folder_.write("train-labels-idx1-ubyte", idx(kLabelsMagic, {6}, std::string("\0\1\7\0\1\7", 6)));
    folder_.write("t10k-images-idx3-ubyte", idx(kImagesMagic, {3, 5, 4}, pixels(1)));
    folder_.write("t10k-labels-idx1-ubyte", idx(kLabelsMagic, {3}, std::string("\0\1\7", 3)));
  }

  // The error of opening the folder, with the folder's path replaced by FOLDER.
  template <class Error>
  std::string folder_error() {
    std::string message = error_message<Error>([&] { open(); });
    const size_t at = message.find(folder_.path());
    return at == std::string::npos ? message : message.replace(at, folder_.path().string().size(), "FOLDER");
  }

  IdxImages open() { return IdxImages({.folder = folder_.path()}); }

  TemporaryFolder folder_;
};

TEST_F(IdxFolder, GivesTheDrawnDigitsWithTheirLabels) {
  const IdxImages images = open();
  EXPECT_EQ(images.training_size(), 6);
  EXPECT_EQ(images.held_out_size(), 3);
  EXPECT_EQ(images.pixels(), 20);
  EXPECT_EQ(images.class_bound(), 8);
  const models::Batch batch = images.training_batch({2, 0, 2});
  EXPECT_EQ(batch.inputs.sizes(), at::IntArrayRef({3, 5, 4}));
  EXPECT_EQ(batch.inputs.scalar_type(), at::kByte);
  EXPECT_TRUE(batch.targets.equal(at::tensor({7, 0, 7}, at::kLong)));
  EXPECT_TRUE(batch.inputs[0][0].equal(at::tensor({255, 255, 255, 255}, at::kByte)));  // the bar of the seven
  EXPECT_TRUE(batch.inputs[1][0].equal(at::tensor({0, 255, 255, 0}, at::kByte)));      // the top of the zero
  EXPECT_TRUE(batch.inputs[2].equal(batch.inputs[0]));
  EXPECT_TRUE(images.held_out_batch({1}).targets.equal(at::tensor({1}, at::kLong)));
}

TEST_F(IdxFolder, AnyByteOfTheDataChangesTheHash) {
  const uint64_t whole = open().content_hash();
  EXPECT_EQ(open().content_hash(), whole);
  for (const std::string name :
       {"train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"}) {
    const std::string file = files::read_file(folder_ / name);
    std::string other = file;
    other.back() ^= 1;
    folder_.write(name, other);
    EXPECT_NE(open().content_hash(), whole) << name;
    folder_.write(name, file);
  }
  EXPECT_EQ(open().content_hash(), whole);
}

TEST_F(IdxFolder, BatchesFitTheClassifier) {
  const IdxImages images = open();
  models::Mlp model({.inputs = images.pixels(), .hidden = 4, .layers = 1, .classes = images.classes()});
  EXPECT_TRUE(model.forward(images.training_batch({0, 1, 2})).isfinite().item<bool>());
}

TEST_F(IdxFolder, IndicesAreChecked) {
  const IdxImages images = open();
  EXPECT_EQ(error_message<c10::ValueError>([&] { images.training_batch({6}); }),
            "indices must be in 0..5, but one is 6");
  EXPECT_EQ(error_message<c10::ValueError>([&] {
              images.held_out_batch({0, -1});
            }),
            "indices must be in 0..2, but one is -1");
  EXPECT_EQ(error_message<c10::ValueError>([&] { images.held_out_batch({}); }), "indices must not be empty");
}

TEST_F(IdxFolder, MissingAndCompressedFilesAreWrongUse) {
  std::filesystem::remove(folder_ / "t10k-labels-idx1-ubyte");
  EXPECT_EQ(folder_error<c10::ValueError>(),
            "FOLDER/t10k-labels-idx1-ubyte: cannot be read: No such file or directory");
  folder_.write("t10k-labels-idx1-ubyte.gz", "x");
  EXPECT_EQ(folder_error<c10::ValueError>(),
            "FOLDER/t10k-labels-idx1-ubyte: does not exist, but a .gz does: unpack it first (gunzip)");
  folder_.write("t10k-labels-idx1-ubyte", "\x1f\x8b\x08");
  EXPECT_EQ(folder_error<c10::ValueError>(),
            "FOLDER/t10k-labels-idx1-ubyte: is compressed by gzip: unpack it first (gunzip)");
}

TEST_F(IdxFolder, LabelsAreOnePerImage) {
  folder_.write("train-labels-idx1-ubyte", idx(kLabelsMagic, {5}, std::string(5, '\1')));
  EXPECT_EQ(folder_error<CorruptInputError>(), "FOLDER/train-labels-idx1-ubyte: byte 4: has 5 labels for 6 images");
}

TEST_F(IdxFolder, LabelsAreBelowTheNumberOfClasses) {
  folder_.write("t10k-labels-idx1-ubyte", idx(kLabelsMagic, {3}, "\x01\x0a\x02"));
  EXPECT_EQ(folder_error<CorruptInputError>(),
            "FOLDER/t10k-labels-idx1-ubyte: byte 9: label 1 is 10, but must be in 0..9");
  EXPECT_EQ(IdxImages({.folder = folder_.path(), .classes = 11}).classes(), 11);
  EXPECT_THROW(IdxImages({.folder = folder_.path(), .classes = 257}), c10::ValueError);
}

TEST_F(IdxFolder, HeldOutImagesHaveTheTrainingImagesSize) {
  folder_.write("t10k-images-idx3-ubyte", idx(kImagesMagic, {3, 4, 5}, pixels(1)));
  EXPECT_EQ(folder_error<CorruptInputError>(),
            "FOLDER/t10k-images-idx3-ubyte: byte 8: held-out images are [4, 5], but training images are [5, 4]");
}

std::string images_error(const std::string& bytes) {
  const TemporaryFolder folder;
  const std::string path = folder.write("f", bytes);
  const std::string message = error_message<CorruptInputError>([&] { read_idx_images(path); });
  return message.starts_with(path + ": ") ? message.substr(path.size() + 2) : message;
}

TEST(IdxFile, WrongHeadersAreRefused) {
  EXPECT_EQ(images_error(""), "byte 0: 0 bytes are too few for an IDX file of 3 dimension(s)");
  EXPECT_EQ(images_error(idx(kImagesMagic, {1, 1}, "")),
            "byte 12: 12 bytes are too few for an IDX file of 3 dimension(s)");
  EXPECT_EQ(images_error(idx(kLabelsMagic, {1, 1, 1}, "x")),
            "byte 0: has the magic number 2049, but bytes of 3 dimension(s) need 2051");
  EXPECT_EQ(images_error(idx(0x03080000, {1, 1, 1}, "x")),
            "byte 0: has the magic number 50855936, but bytes of 3 dimension(s) need 2051");
}

TEST(IdxFile, WrongSizesAreRefused) {
  EXPECT_EQ(images_error(idx(kImagesMagic, {0, 5, 4}, "")), "byte 4: has the sizes 0, which are not valid");
  EXPECT_EQ(images_error(idx(kImagesMagic, {1, 2, 2}, "abc")),
            "byte 4: has the sizes 1 2 2, which need 4 bytes of data, but 3 bytes follow");
  EXPECT_EQ(images_error(idx(kImagesMagic, {1, 2, 2}, "abcde")),
            "byte 4: has the sizes 1 2 2, which need 4 bytes of data, but 5 bytes follow");
  EXPECT_EQ(images_error(idx(kImagesMagic, {UINT32_MAX, UINT32_MAX, UINT32_MAX}, "x")),
            "byte 8: has the sizes 4294967295 4294967295, which are not valid");
}

}  // namespace
}  // namespace narrowcast::data
