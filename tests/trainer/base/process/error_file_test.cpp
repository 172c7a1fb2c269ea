#include "trainer/base/process/error_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "tests/support/temporary_folder.h"

namespace narrowcast::program {
namespace {

class ErrorFileTest : public ::testing::Test {
 protected:
  const testing::TemporaryFolder folder;
  const std::string file = folder / "error.json";
};

TEST_F(ErrorFileTest, IsReadInBothForms) {
  const std::string nested = R"({"message": {"message": "M", "extraInfo": {"py_callstack": "C", "timestamp": "1"}}})";
  EXPECT_EQ(read_error_file(folder.write("nested", nested)).message, "M");
  EXPECT_EQ(read_error_file(folder.write("flat", R"({"message": "M"})")).message, "M");
}

TEST_F(ErrorFileTest, TellsWhetherARestartWouldFailAlike) {
  for (const bool is_final : {false, true}) {
    EXPECT_TRUE(write_error_file(file, {.message = "M", .is_final = is_final}, 1));
    EXPECT_EQ(read_error_file(file).is_final, is_final);
  }
  EXPECT_TRUE(read_error_file(folder.write("flat", R"({"message": "M", "restart": false})")).is_final);
  for (const char* const value : {"true", "null", "0", "\"false\"", "[]"}) {
    const std::string text = std::string(R"({"message": "M", "restart": )") + value + "}";
    EXPECT_FALSE(read_error_file(folder.write("other", text)).is_final) << value;
  }
}

TEST_F(ErrorFileTest, TellsWhetherThisProcessAloneIsToBlame) {
  EXPECT_TRUE(write_error_file(file, {.message = "M", .is_final = true, .is_misfit = true}, 1));
  EXPECT_TRUE(read_error_file(file).is_misfit);
  EXPECT_TRUE(write_error_file(file, {.message = "M", .is_final = true}, 1));
  EXPECT_FALSE(read_error_file(file).is_misfit);
  EXPECT_FALSE(read_error_file(folder.write("other", R"({"message": "M", "misfit": true})")).is_misfit)
      << "a restart may help";
}

TEST_F(ErrorFileTest, ReadingPutsUpWithWhatIsNone) {
  for (const char* const text : {"", "{", "[]", "7", "{}", R"({"message": 7})", R"({"message": {"message": 7}})",
                                 R"({"message": {}})", "{\"message\": \"\xff\"}"}) {
    EXPECT_EQ(read_error_file(folder.write("bad", text)).message, "") << text;
  }
  EXPECT_EQ(read_error_file("/no/such").message, "");
}

TEST_F(ErrorFileTest, ReadingNeitherWaitsNorFollowsNorRunsOutOfStack) {
  ASSERT_EQ(::mkfifo(file.c_str(), 0600), 0);
  EXPECT_EQ(read_error_file(file).message, "");
  EXPECT_EQ(read_error_file("/dev/zero").message, "");
  std::filesystem::create_symlink(folder.write("secret", R"({"message": "M"})"), folder / "link");
  EXPECT_EQ(read_error_file(folder / "link").message, "");
  EXPECT_EQ(read_error_file(folder.write("deep", "{\"message\": " + std::string(60'000, '['))).message, "");
  EXPECT_EQ(read_error_file(folder.write("long", R"({"message": ")" + std::string(20 << 20, 'x') + "\"}")).message, "");
}

TEST_F(ErrorFileTest, WritingNeitherWaitsNorFollows) {
  ASSERT_EQ(::mkfifo((file + ".tmp").c_str(), 0600), 0);
  EXPECT_TRUE(write_error_file(file, {"M"}, 1));
  EXPECT_EQ(read_error_file(file).message, "M");
  std::filesystem::create_symlink(folder.write("precious", "content"), file + ".tmp");
  EXPECT_TRUE(write_error_file(file, {"N"}, 1));
  EXPECT_EQ(read_error_file(file).message, "N");
  std::ifstream precious(folder / "precious");
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(precious), {}), "content");
}

TEST_F(ErrorFileTest, IsWrittenAsTorchrunReadsIt) {
  EXPECT_TRUE(write_error_file(file, {"the disk \"d\" is full"}, 1700000000));
  std::ifstream stream(file);
  const std::string text(std::istreambuf_iterator<char>(stream), {});
  EXPECT_EQ(text, R"({"message":{"extraInfo":{"py_callstack":"the disk \"d\" is full","timestamp":"1700000000"},)"
                  R"("message":"the disk \"d\" is full"}})");
  EXPECT_EQ(read_error_file(file).message, "the disk \"d\" is full");
  EXPECT_EQ(folder.entries(), 1) << "nothing unfinished stays";
}

TEST_F(ErrorFileTest, CannotBeWrittenJustAnywhere) {
  EXPECT_FALSE(write_error_file(folder / "no/such/folder/error.json", {"M"}, 1));
  EXPECT_FALSE(write_error_file(folder / "", {"M"}, 1)) << "a folder's name";
  EXPECT_EQ(folder.entries(), 0);
}

// "/dev/null" as the error file must stay what all programs use.
TEST_F(ErrorFileTest, WritingReplacesNothingButFiles) {
  ASSERT_EQ(::mkfifo(file.c_str(), 0600), 0);
  EXPECT_FALSE(write_error_file(file, {"M"}, 1));
  EXPECT_TRUE(std::filesystem::is_fifo(file));
  EXPECT_EQ(folder.entries(), 1);
}

}  // namespace

}  // namespace narrowcast::program
