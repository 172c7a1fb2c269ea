#include "trainer/train/files/sha256.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"

namespace narrowcast::files {
namespace {

using narrowcast::testing::error_message;
using narrowcast::testing::TemporaryFolder;

// The examples of FIPS 180-2, appendix B.
constexpr const char* kOfAbc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
constexpr const char* kOfMillionA = "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0";
constexpr const char* kOfNothing = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

TEST(Sha256, GivesTheStandardsExamples) {
  EXPECT_EQ(Sha256().hex(), kOfNothing);
  Sha256 hash;
  hash.update("a");
  EXPECT_NE(hash.hex(), kOfAbc);
  hash.update("bc");
  EXPECT_EQ(hash.hex(), kOfAbc) << "in parts, and asked in between";
}

TEST(DigestOfFile, IsThatOfAllBytes) {
  const TemporaryFolder folder;
  EXPECT_EQ(digest_of_file(folder.write("a", std::string(1'000'000, 'a'))), (FileDigest{1'000'000, kOfMillionA}));
  EXPECT_EQ(digest_of_file(folder.write("empty", "")), (FileDigest{0, kOfNothing}));
  Sha256 whole;
  const std::string long_text = std::string(5'000'000, 'x') + "y";
  whole.update(long_text);
  EXPECT_EQ(digest_of_file(folder.write("long", long_text)).sha256, whole.hex());
}

TEST(DigestOfFile, NamesAFileThatIsNotThere) {
  EXPECT_EQ(error_message<c10::ValueError>([] { digest_of_file("/nonexistent/x"); }),
            "/nonexistent/x: cannot be read: No such file or directory");
}

}  // namespace
}  // namespace narrowcast::files
