// Files that a reader must refuse or accept, by examples and by mutations.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <string>

#include <narrowcast/errors.h>
#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"
#include "trainer/base/files/open_file.h"
#include "trainer/train/files/safetensors.h"

namespace narrowcast::files {
namespace {

using narrowcast::testing::error_message;
using narrowcast::testing::TemporaryFolder;

// A file of a header length, a header and data.
std::string file_bytes(uint64_t length, const std::string& header, const std::string& data) {
  std::string bytes(sizeof(length), '\0');
  std::memcpy(bytes.data(), &length, sizeof(length));
  return bytes + header + data;
}

TEST(SafetensorsFile, MisalignedTensorsAreRead) {
  const TemporaryFolder folder;
  const std::string header =
      R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"F32","shape":[1],"data_offsets":[1,5]}})";
  const std::string path = folder.write("f", file_bytes(header.size(), header, std::string("\x07\x00\x00\x80\x3f", 5)));
  EXPECT_TRUE(read_safetensors(path).tensors.at("b").equal(at::ones({1})));
}

// The error of reading a file of these bytes, without the path and the ": " after it.
std::string read_error(const std::string& bytes) {
  const TemporaryFolder folder;
  const std::string path = folder.write("f", bytes);
  const std::string message = error_message<CorruptInputError>([&] { read_safetensors(path); });
  return message.starts_with(path + ": ") ? message.substr(path.size() + 2) : message;
}

TEST(SafetensorsFile, WrongLengthsAreRefused) {
  EXPECT_EQ(read_error(""), "byte 0: 0 bytes are too few for a safetensors file");
  EXPECT_EQ(read_error("1234567"), "byte 7: 7 bytes are too few for a safetensors file");
  EXPECT_EQ(read_error(file_bytes(3, "{}", "")),
            "byte 0: the header's length 3 reaches past the end of the file at byte 10");
  EXPECT_EQ(read_error(file_bytes(100'000'000, "{}", "")),
            "byte 0: the header's length 100000000 reaches past the end of the file at byte 10");
  EXPECT_EQ(read_error(file_bytes(100'000'001, "{}", "")),
            "byte 0: the header's length 100000001 is above the limit of 100000000 bytes");
  EXPECT_EQ(read_error(file_bytes(UINT64_MAX, "{}", "")),
            "byte 0: the header's length 18446744073709551615 is above the limit of 100000000 bytes");
  EXPECT_EQ(read_error(file_bytes(0, "", "")), "byte 8: the header does not begin with '{'");
}

TEST(SafetensorsFile, TruthValuesAreZeroOrOne) {
  const std::string header = R"({"t":{"dtype":"BOOL","shape":[3],"data_offsets":[0,3]}})";
  EXPECT_EQ(
      read_error(file_bytes(header.size(), header, std::string("\x00\x01\x02", 3))),
      "byte " + std::to_string(8 + header.size() + 2) + ": tensor 't' of dtype BOOL holds a byte other than 0 and 1");
}

// Returns whether the file loads or is refused with CorruptInputError; anything else fails the test.
bool loads(const std::string& path) {
  try {
    read_safetensors(path);
    return true;
  } catch (const CorruptInputError& error) {
    EXPECT_NE(std::string(error.what_without_backtrace()).find(path), std::string::npos);
    EXPECT_EQ(std::string(error.what_without_backtrace()).find('\n'), std::string::npos);
    return false;
  }
}

class SafetensorsMutations : public ::testing::Test {
 protected:
  SafetensorsMutations() {
    write_safetensors(path_, {.tensors = {{"layer.weight", at::arange(6, at::kFloat).view({2, 3})},
                                          {"layer.bias", at::ones({3}, at::kBFloat16)},
                                          {"mask", at::ones({5}, at::kBool)}},
                              .metadata = {{"format_version", "1"}, {"model", "m\xc3\xb6"}}});
    original_ = read_file(path_);
  }

  TemporaryFolder folder_;
  std::string path_ = folder_ / "f";
  std::string original_;
};

TEST_F(SafetensorsMutations, EveryTruncationIsRefused) {
  ASSERT_TRUE(loads(path_));
  for (size_t length = 0; length < original_.size(); ++length) {
    folder_.write("f", original_.substr(0, length));
    EXPECT_FALSE(loads(path_)) << length << " bytes";
  }
}

TEST_F(SafetensorsMutations, EveryAddedByteIsRefused) {
  for (size_t at = 0; at <= original_.size(); ++at) {
    folder_.write("f", original_.substr(0, at) + "0" + original_.substr(at));
    EXPECT_FALSE(loads(path_)) << "added at byte " << at;
  }
}

TEST_F(SafetensorsMutations, EveryChangedByteLoadsOrIsRefused) {
  std::mt19937 random(1);
  int64_t refused = 0;
  for (size_t at = 0; at < original_.size(); ++at) {
    for (const int flip : {0x01, 0x20, 0x80, 0xff, static_cast<int>(random() % 255 + 1)}) {
      std::string changed = original_;
      changed[at] = static_cast<char>(changed[at] ^ flip);
      folder_.write("f", changed);
      refused += !loads(path_);
    }
  }
  EXPECT_GT(refused, 500);  // most of the header's bytes are structure
}

TEST_F(SafetensorsMutations, ManyChangesTogetherLoadOrAreRefused) {
  std::mt19937 random(2);
  const std::string structure = "{}[]\",:0129-.eE\\u nulltruef";
  for (int trial = 0; trial < 3000; ++trial) {
    std::string changed = original_;
    for (uint32_t change = 0; change <= random() % 4; ++change) {
      changed[random() % changed.size()] = structure[random() % structure.size()];
    }
    folder_.write("f", changed);
    loads(path_);
  }
}

}  // namespace
}  // namespace narrowcast::files
