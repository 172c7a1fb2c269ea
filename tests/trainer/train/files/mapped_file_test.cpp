#include "trainer/train/files/mapped_file.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"
#include "trainer/base/files/hash.h"

namespace narrowcast::files {
namespace {

using narrowcast::testing::error_message;
using narrowcast::testing::TemporaryFolder;

TEST(MappedFile, HasTheFilesBytesWhateverBecomesOfItsName) {
  const TemporaryFolder folder;
  const std::string path = folder.write("f", "real bytes");
  const MappedFile file(path);
  folder.write("f", "others");  // Another file under that name.
  EXPECT_EQ(file.bytes(), "real bytes");
  EXPECT_EQ(file.size(), 10);
  EXPECT_EQ(file.path(), path);
}

TEST(MappedFile, AnEmptyFileHasNoBytes) {
  const TemporaryFolder folder;
  EXPECT_EQ(MappedFile(folder.write("f", "")).size(), 0);
}

TEST(MappedFile, WhatCannotBeReadIsNamed) {
  const TemporaryFolder folder;
  EXPECT_EQ(error_message<c10::ValueError>([&] { MappedFile(folder / "none"); }),
            folder / "none" + ": cannot be read: No such file or directory");
  EXPECT_EQ(error_message<c10::ValueError>([&] { MappedFile(folder.path().string()); }),
            folder.path().string() + ": is a folder, but must be a file");
}

// Files of up to 16 MiB are hashed as a whole, longer files in part.
constexpr uint64_t kLongest = uint64_t{16} << 20;

uint64_t hash_of(const std::string& path) { return sampled_hash(MappedFile(path), kHashStart); }

void flip_byte(const std::string& path, uint64_t at) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(at));
  const char byte = static_cast<char>(file.get() ^ 1);
  file.seekp(static_cast<std::streamoff>(at));
  file.put(byte);
}

class SampledHash : public ::testing::TestWithParam<uint64_t> {};

TEST_P(SampledHash, ChangesWithTheLengthAndWithWhatIsSampled) {
  const TemporaryFolder folder;
  const std::string path = folder.write("f", "");
  std::filesystem::resize_file(path, GetParam());
  const uint64_t whole = hash_of(path);
  EXPECT_EQ(hash_of(path), whole);
  for (const uint64_t at : {uint64_t{0}, uint64_t{4095}, GetParam() - 4096, GetParam() - 1}) {
    flip_byte(path, at);
    EXPECT_NE(hash_of(path), whole) << at;
    flip_byte(path, at);
  }
  flip_byte(path, 6000);
  EXPECT_EQ(hash_of(path) == whole, GetParam() > kLongest) << "between the first two pieces of a long file";
  flip_byte(path, 6000);
  std::filesystem::resize_file(path, GetParam() + 1);
  EXPECT_NE(hash_of(path), whole);
}

INSTANTIATE_TEST_SUITE_P(Lengths, SampledHash, ::testing::Values(10000, kLongest, kLongest + 1));

TEST(HashOfFiles, GoesOnFromAnother) {
  const TemporaryFolder folder;
  const MappedFile file(folder.write("f", ""));
  EXPECT_NE(sampled_hash(file, kHashStart), sampled_hash(file, kHashStart + 1));
}

}  // namespace
}  // namespace narrowcast::files
