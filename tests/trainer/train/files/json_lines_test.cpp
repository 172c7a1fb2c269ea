#include "ops/common/file_descriptor.h"
#include "trainer/train/files/file_io.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <limits>

#include <narrowcast/errors.h>
#include "tests/support/error_message.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/temporary_folder.h"
#include "trainer/base/files/open_file.h"

namespace narrowcast::files {
namespace {

using narrowcast::testing::error_message;
using narrowcast::testing::FileSizeLimit;
using narrowcast::testing::TemporaryFolder;

TEST(JsonLines, EachObjectIsALineThatIsThereAtOnce) {
  const TemporaryFolder folder;
  JsonLinesFile file(folder / "metrics.jsonl");
  file.append({{"step", 1}, {"loss", 0.5}});
  EXPECT_EQ(read_file(folder / "metrics.jsonl"), "{\"loss\":0.5,\"step\":1}\n");
  file.append({{"text", "two\nlines"}});
  EXPECT_EQ(read_file(folder / "metrics.jsonl"), "{\"loss\":0.5,\"step\":1}\n{\"text\":\"two\\nlines\"}\n");
}

TEST(JsonLines, NumbersKeepTheirValue) {
  const TemporaryFolder folder;
  const double loss = 0.1f;
  JsonLinesFile(folder / "m").append({{"loss", loss}});
  EXPECT_EQ(nlohmann::json::parse(read_file(folder / "m"))["loss"].get<double>(), loss);
}

TEST(JsonLines, SpecialNumbersAreNamedAtAnyDepth) {
  const TemporaryFolder folder;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  JsonLinesFile(folder / "m").append({{"a", kNan}, {"b", {kInfinity, 1.5}}, {"c", {{"d", -kInfinity}}}});
  EXPECT_EQ(read_file(folder / "m"), "{\"a\":\"NaN\",\"b\":[\"Infinity\",1.5],\"c\":{\"d\":\"-Infinity\"}}\n");
}

// Such strings occur in paths of files.
TEST(JsonLines, StringsThatAreNotUtf8AreEscaped) {
  const TemporaryFolder folder;
  JsonLinesFile(folder / "m").append({{"a", "caf\xe9\n"}, {"b", {"\xff", "caf\xc3\xa9\n"}}, {"c", {{"d", "\xe9"}}}});
  EXPECT_EQ(read_file(folder / "m"),
            "{\"a\":\"caf\\\\xe9\\\\n\",\"b\":[\"\\\\xff\",\"caf\xc3\xa9\\n\"],\"c\":{\"d\":\"\\\\xe9\"}}\n");
}

TEST(JsonLines, ReplacesOrAppends) {
  const TemporaryFolder folder;
  const std::string path = folder.write("m", "{}\n");
  JsonLinesFile(path, JsonLinesMode::kAppend).append({{"a", 1}});
  EXPECT_EQ(read_file(path), "{}\n{\"a\":1}\n");
  JsonLinesFile(path, JsonLinesMode::kReplace).append({{"b", 2}});
  EXPECT_EQ(read_file(path), "{\"b\":2}\n");
}

TEST(JsonLines, ALineThatCannotBeWrittenIsNamed) {
  const TemporaryFolder folder;
  JsonLinesFile file(folder / "m");
  const FileSizeLimit limit(4);
  EXPECT_EQ(error_message<OutputError>([&] {
              file.append({{"a", 1}});
            }),
            folder / "m" + ": cannot be written: File too large");
}

TEST(JsonLines, GoesIntoRegularFilesOnly) {
  const TemporaryFolder folder;
  const auto refusal = [&](const std::string& path) {
    return error_message<c10::ValueError>([&] { JsonLinesFile file(path); });
  };
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);  // has no reader: opening would wait for ever
  EXPECT_EQ(refusal(folder / "pipe"), folder / "pipe" + ": cannot be written: it is not a regular file");
  const FileDescriptor reader(::open((folder / "pipe").c_str(), O_RDONLY | O_NONBLOCK));
  EXPECT_EQ(refusal(folder / "pipe"), folder / "pipe" + ": cannot be written: it is not a regular file");
  EXPECT_EQ(refusal("/dev/null"), "/dev/null: cannot be written: it is not a regular file");
  EXPECT_EQ(refusal(folder.path()), folder.path().string() + ": cannot be written: Is a directory");
  std::filesystem::create_symlink(folder.write("precious", "content"), folder / "link");
  EXPECT_EQ(refusal(folder / "link"),
            folder / "link" + ": cannot be written: it is a symbolic link, but must be a file");
  EXPECT_EQ(read_file(folder / "precious"), "content");
}

TEST(JsonLines, WrongUseIsNamed) {
  EXPECT_EQ(error_message<c10::ValueError>([] { JsonLinesFile("/nonexistent/m"); }),
            "/nonexistent/m: cannot be written: No such file or directory");
  const TemporaryFolder folder;
  JsonLinesFile file(folder / "m");
  EXPECT_EQ(error_message<c10::ValueError>([&] { file.append(nlohmann::json::array({1})); }),
            folder / "m" + ": each line must be a JSON object, not array");
  EXPECT_THROW(file.append({{"\xff", 1}}), c10::ValueError);
  EXPECT_EQ(read_file(folder / "m"), "");
}

}  // namespace
}  // namespace narrowcast::files
