#include "trainer/base/files/torch_archive.h"

#include <c10/util/Exception.h>
#include <caffe2/serialize/inline_container.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <narrowcast/errors.h>
#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"
#include "trainer/base/files/open_file.h"

namespace narrowcast::files {
namespace {

using narrowcast::testing::error_message;

constexpr const char* kOtherwise = "is another file";

std::string write_pytorch_archive(const std::string& path) {
  caffe2::serialize::PyTorchStreamWriter writer(path);
  for (const std::string_view name : {"a/first.so", "a/second.so", "b/third.json", "empty"}) {
    const std::string bytes = name == "empty" ? "" : std::string(name) + " has this content";
    writer.writeRecord(std::string(name), bytes.data(), bytes.size());
  }
  writer.writeEndOfFile();
  return path;
}

std::string little_endian(uint64_t number, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += static_cast<char>(number >> (8 * i));
  return text;
}

// A ZIP file with the records net/version, "3", and net/check, "123456789", whose checksums are in their headers, as
// other programs write them.
std::string zip_with_sums_in_headers(uint32_t sum_of_check) {
  struct Record {
    std::string name;
    std::string data;
    uint32_t sum;
  };
  std::string file;
  std::string directory;
  for (const auto& [name, data, sum] :
       {Record{"net/version", "3", 0x6dd28e9b}, Record{"net/check", "123456789", sum_of_check}}) {
    const std::string common = little_endian(20, 2) + little_endian(0, 8) + little_endian(sum, 4) +
                               little_endian(data.size(), 4) + little_endian(data.size(), 4) +
                               little_endian(name.size(), 2) + little_endian(0, 2);
    directory += std::string("PK\1\2") + little_endian(20, 2) + common + little_endian(0, 10) +
                 little_endian(file.size(), 4) + name;
    file += std::string("PK\3\4") + common + name + data;
  }
  return file + directory + "PK\5\6" + little_endian(0, 4) + little_endian(2, 2) + little_endian(2, 2) +
         little_endian(directory.size(), 4) + little_endian(file.size(), 4) + little_endian(0, 2);
}

TEST(TorchArchive, FindsAndReadsRecords) {
  const testing::TemporaryFolder folder;
  const TorchArchive archive(write_pytorch_archive(folder / "net.pt"), kOtherwise);
  EXPECT_TRUE(archive.has("b/third.json"));
  EXPECT_FALSE(archive.has("third.json"));
  EXPECT_THAT(archive.find("a/", ".so"), ::testing::Optional(::testing::StrEq("a/first.so")));
  EXPECT_EQ(archive.find("b/", ".so"), std::nullopt);
  EXPECT_EQ(archive.read("a/second.so"), "a/second.so has this content");
  EXPECT_EQ(archive.read("empty"), "");
}

TEST(TorchArchive, OtherFilesAreErrors) {
  const testing::TemporaryFolder folder;
  EXPECT_EQ(error_message<c10::ValueError>([&] { TorchArchive(folder / "net.pt", kOtherwise); }),
            folder / "net.pt" + ": cannot be read: No such file or directory");
  const std::string text = folder.write("net.txt", "content");
  EXPECT_EQ(error_message<c10::ValueError>([&] { TorchArchive(text, kOtherwise); }), text + ": is another file");
}

TEST(TorchArchive, MissingRecordsAreErrors) {
  const testing::TemporaryFolder folder;
  const std::string path = write_pytorch_archive(folder / "net.pt");
  const TorchArchive archive(path, kOtherwise);
  EXPECT_THAT(error_message<CorruptInputError>([&] { archive.read("other"); }),
              ::testing::StartsWith(path + ": is damaged: "));
}

TEST(TorchArchive, ChecksumsAreCompared) {
  const testing::TemporaryFolder folder;
  std::string bytes = read_file(write_pytorch_archive(folder / "whole.pt"));
  bytes[bytes.find("third.json has this")] ^= 1;
  const std::string path = folder.write("net.pt", bytes);
  const TorchArchive archive(path, kOtherwise);
  EXPECT_EQ(archive.read("a/first.so"), "a/first.so has this content");
  EXPECT_EQ(error_message<CorruptInputError>([&] { archive.read("b/third.json"); }),
            path + ": its record 'b/third.json' is damaged: its checksum is wrong");
}

// CRC-32 gives cbf43926 for "123456789" (the check value of its catalogues).
TEST(TorchArchive, ChecksumsMayBeInHeaders) {
  const testing::TemporaryFolder folder;
  const std::string right = folder.write("right.pt", zip_with_sums_in_headers(0xcbf43926));
  EXPECT_EQ(TorchArchive(right, kOtherwise).read("check"), "123456789");
  const std::string wrong = folder.write("wrong.pt", zip_with_sums_in_headers(0xcbf43927));
  EXPECT_EQ(error_message<CorruptInputError>([&] { TorchArchive(wrong, kOtherwise).read("check"); }),
            wrong + ": its record 'check' is damaged: its checksum is wrong");
}

}  // namespace
}  // namespace narrowcast::files
