#include "trainer/launcher/failure/error_file.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/support/temporary_folder.h"

namespace narrowcast::launcher {
namespace {

TEST(ErrorFile, IsReadInBothForms) {
  const testing::TemporaryFolder folder;
  EXPECT_EQ(read_error_message(folder.write(
                "nested", R"({"message": {"message": "M", "extraInfo": {"py_callstack": "C", "timestamp": "1"}}})")),
            "M");
  EXPECT_EQ(read_error_message(folder.write("flat", R"({"message": "M"})")), "M");
}

TEST(ErrorFile, PutsUpWithWhatIsNone) {
  const testing::TemporaryFolder folder;
  for (const char* const text : {"", "{", "[]", "7", "{}", R"({"message": 7})", R"({"message": {"message": 7}})",
                                 R"({"message": {}})", "{\"message\": \"\xff\"}"}) {
    EXPECT_EQ(read_error_message(folder.write("bad", text)), "") << text;
  }
  EXPECT_EQ(read_error_message("/no/such"), "");
}

TEST(ErrorFile, IsWrittenAsTorchrunReadsIt) {
  const testing::TemporaryFolder folder;
  const std::filesystem::path file = folder / "error.json";
  write_error_file(file, "the disk \"d\" is full", 1700000000);
  std::ifstream stream(file);
  const std::string text(std::istreambuf_iterator<char>(stream), {});
  EXPECT_EQ(text, R"({"message":{"extraInfo":{"py_callstack":"the disk \"d\" is full","timestamp":"1700000000"},)"
                  R"("message":"the disk \"d\" is full"}})");
  EXPECT_EQ(read_error_message(file), "the disk \"d\" is full");
  EXPECT_FALSE(std::filesystem::exists(file.string() + ".part"));
}

TEST(ErrorFile, TakesBytesThatAreNoText) {
  const testing::TemporaryFolder folder;
  write_error_file(folder / "error.json", "bad \xff byte", 1);
  EXPECT_EQ(read_error_message(folder / "error.json"), "bad \xEF\xBF\xBD byte");
}

TEST(ErrorFile, CannotBeWrittenJustAnywhere) { EXPECT_THROW(write_error_file("/no/such/file", "M", 1), c10::Error); }

}  // namespace
}  // namespace narrowcast::launcher
