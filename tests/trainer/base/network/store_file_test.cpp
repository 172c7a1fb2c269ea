#include "trainer/base/network/store_file.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include <narrowcast/errors.h>
#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"

namespace narrowcast::network {
namespace {

using testing::error_message;
using ::testing::HasSubstr;
using testing::TemporaryFolder;

TEST(StoreFile, NamesTheAddress) {
  const TemporaryFolder folder;
  EXPECT_EQ(read_store_file(folder / "none"), std::nullopt);
  EXPECT_EQ(read_store_file(folder.write("a", "alpha.example:29400\n")), (StoreAddress{"alpha.example", 29400}));
  EXPECT_EQ(read_store_file(folder.write("b", "[::1]:1\n")), (StoreAddress{"::1", 1}));
}

TEST(StoreFile, IsReplacedByAnother) {
  const TemporaryFolder folder;
  for (const StoreAddress& store : {StoreAddress{"alpha.example", 29400}, {"fd00::1", 1}}) {
    write_store_file(folder / "file", store);
    EXPECT_EQ(read_store_file(folder / "file"), store);
  }
  EXPECT_FALSE(std::filesystem::exists(folder / "file.new"));
  EXPECT_THAT(error_message<c10::ValueError>([&] {
                write_store_file(folder / "none/file", {"alpha", 1});
              }),
              HasSubstr((folder / "none/file") + ": cannot be written"));
}

TEST(StoreFile, OtherContentIsAnErrorThatNamesIt) {
  const TemporaryFolder folder;
  for (const std::string text : {"", "\n", "alpha\n", "alpha:\n", "alpha:0\n", "alpha:1", "alpha:65536\n", ":1\n"}) {
    const std::string path = folder.write("file", text);
    EXPECT_THAT(error_message<CorruptInputError>([&] { read_store_file(path); }), HasSubstr(path)) << text;
  }
  EXPECT_THROW(read_store_file(folder.write("file", std::string(2000, 'a'))), CorruptInputError);
  EXPECT_THROW(read_store_file(folder.path()), c10::ValueError);
}

TEST(StoreFile, HasMovedIfItNamesAnotherAddress) {
  const TemporaryFolder folder;
  const StoreAddress here = {"alpha", 29400};
  EXPECT_FALSE(store_has_moved(folder / "file", here));
  EXPECT_FALSE(store_has_moved(folder.write("file", "alpha:29400\n"), here));
  EXPECT_TRUE(store_has_moved(folder.write("file", "beta:29400\n"), here));
  EXPECT_TRUE(store_has_moved(folder.write("file", "alpha:29401\n"), here));
  EXPECT_FALSE(store_has_moved(folder.write("file", "alp"), here)) << "it cannot be read";
}

}  // namespace
}  // namespace narrowcast::network
