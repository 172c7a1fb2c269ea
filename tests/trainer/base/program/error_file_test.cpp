#include "trainer/base/program/error_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "tests/support/temporary_folder.h"

namespace narrowcast::program {
namespace {

int64_t seconds_now() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

class ErrorFileTest : public ::testing::Test {
 protected:
  // The file's object "message", when a program has failed so.
  nlohmann::json written(const Failure& failure) {
    error_file_writer(file)(failure);
    return nlohmann::json::parse(std::ifstream(file)).at("message");
  }

  const testing::TemporaryFolder folder;
  const std::string file = folder / "error.json";
};

TEST_F(ErrorFileTest, IsReadInBothForms) {
  EXPECT_EQ(read_error_message(folder.write(
                "nested", R"({"message": {"message": "M", "extraInfo": {"py_callstack": "C", "timestamp": "1"}}})")),
            "M");
  EXPECT_EQ(read_error_message(folder.write("flat", R"({"message": "M"})")), "M");
}

TEST_F(ErrorFileTest, ReadingPutsUpWithWhatIsNone) {
  for (const char* const text : {"", "{", "[]", "7", "{}", R"({"message": 7})", R"({"message": {"message": 7}})",
                                 R"({"message": {}})", "{\"message\": \"\xff\"}"}) {
    EXPECT_EQ(read_error_message(folder.write("bad", text)), "") << text;
  }
  EXPECT_EQ(read_error_message("/no/such"), "");
}

TEST_F(ErrorFileTest, ReadingNeitherWaitsNorFollowsNorRunsOutOfStack) {
  ASSERT_EQ(::mkfifo(file.c_str(), 0600), 0);
  EXPECT_EQ(read_error_message(file), "");
  EXPECT_EQ(read_error_message("/dev/zero"), "");
  std::filesystem::create_symlink(folder.write("secret", R"({"message": "M"})"), folder / "link");
  EXPECT_EQ(read_error_message(folder / "link"), "");
  EXPECT_EQ(read_error_message(folder.write("deep", "{\"message\": " + std::string(60'000, '['))), "");
  EXPECT_EQ(read_error_message(folder.write("long", R"({"message": ")" + std::string(20 << 20, 'x') + "\"}")), "");
}

TEST_F(ErrorFileTest, WritingNeitherWaitsNorFollows) {
  ASSERT_EQ(::mkfifo((file + ".tmp").c_str(), 0600), 0);
  EXPECT_TRUE(write_error_file(file, "M", 1));
  EXPECT_EQ(read_error_message(file), "M");
  std::filesystem::create_symlink(folder.write("precious", "content"), file + ".tmp");
  EXPECT_TRUE(write_error_file(file, "N", 1));
  EXPECT_EQ(read_error_message(file), "N");
  std::ifstream precious(folder / "precious");
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(precious), {}), "content");
}

TEST_F(ErrorFileTest, IsWrittenAsTorchrunReadsIt) {
  EXPECT_TRUE(write_error_file(file, "the disk \"d\" is full", 1700000000));
  std::ifstream stream(file);
  const std::string text(std::istreambuf_iterator<char>(stream), {});
  EXPECT_EQ(text, R"({"message":{"extraInfo":{"py_callstack":"the disk \"d\" is full","timestamp":"1700000000"},)"
                  R"("message":"the disk \"d\" is full"}})");
  EXPECT_EQ(read_error_message(file), "the disk \"d\" is full");
  EXPECT_EQ(folder.entries(), 1) << "nothing unfinished stays";
}

TEST_F(ErrorFileTest, CannotBeWrittenJustAnywhere) {
  EXPECT_FALSE(write_error_file(folder / "no/such/folder/error.json", "M", 1));
  EXPECT_FALSE(write_error_file(folder / "", "M", 1)) << "a folder's name";
  EXPECT_EQ(folder.entries(), 0);
}

// "/dev/null" as the error file must stay what all programs use.
TEST_F(ErrorFileTest, WritingReplacesNothingButFiles) {
  ASSERT_EQ(::mkfifo(file.c_str(), 0600), 0);
  EXPECT_FALSE(write_error_file(file, "M", 1));
  EXPECT_TRUE(std::filesystem::is_fifo(file));
  EXPECT_EQ(folder.entries(), 1);
}

TEST_F(ErrorFileTest, HoldsWhyAProgramFailed) {
  const int64_t before = seconds_now();
  const nlohmann::json message = written({kCorruptInput, "f.txt: \"byte\" 3 \xff"});
  EXPECT_EQ(message.at("message"), "f.txt: \"byte\" 3 \xEF\xBF\xBD");
  const int64_t time = std::stoll(message.at("extraInfo").at("timestamp").get<std::string>());
  EXPECT_GE(time, before);
  EXPECT_LE(time, seconds_now());
}

TEST_F(ErrorFileTest, ALostPeerIsToldLaterThanItsDeath) {
  const int64_t before = seconds_now();
  const nlohmann::json message = written({kPeerFailed, "rank 0: peer lost"});
  EXPECT_GE(std::stoll(message.at("extraInfo").at("timestamp").get<std::string>()), before + 2);
}

TEST_F(ErrorFileTest, NowhereToWriteIsNoError) {
  error_file_writer("")({kWrongUse, "x"});
  error_file_writer(folder / "no/such/folder/error.json")({kWrongUse, "x"});
  EXPECT_EQ(folder.entries(), 0);
}

TEST_F(ErrorFileTest, IsWrittenByAFailingProgramOnly) {
  const auto writer = error_file_writer(file);
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(run_program(
                "prog", [] { return 1; }, writer),
            1);
  EXPECT_EQ(folder.entries(), 0);
  EXPECT_EQ(run_program(
                "prog", []() -> int { throw std::runtime_error("odd"); }, writer),
            kInternalError);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "prog: odd\n");
  EXPECT_EQ(nlohmann::json::parse(std::ifstream(file)).at("message").at("message"), "odd");
}

}  // namespace
}  // namespace narrowcast::program
