#include "trainer/base/program/job_secret.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <string>

#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"

namespace narrowcast::program {
namespace {

using testing::error_message;
using ::testing::HasSubstr;
using testing::TemporaryFolder;

class JobSecretTest : public ::testing::Test {
 protected:
  std::string write(const std::string& text, mode_t mode = 0600) {
    folder.write("secret", text);
    const std::string path = folder / "secret";
    chmod(path.c_str(), mode);
    return path;
  }
  static std::string refusal(const std::string& path) {
    return error_message<c10::ValueError>([&] { JobSecret::read("--secret_file", path); });
  }
  const TemporaryFolder folder;
};

// RFC 4231, test case 1, whose key has 20 bytes. The key of test case 2 has 4 bytes, fewer than the least of 16.
TEST_F(JobSecretTest, ComputesHmacSha256) {
  const JobSecret secret = JobSecret::read("--secret_file", write(std::string(20, '\x0b')));
  EXPECT_EQ(secret.mac("Hi There"), "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
}

TEST_F(JobSecretTest, LeavesOutLineFeedsAtTheEnd) {
  const std::string mac = JobSecret::read("--secret_file", write("sixteen bytes it\n")).mac("x");
  EXPECT_EQ(JobSecret::read("--secret_file", write("sixteen bytes it")).mac("x"), mac);
  EXPECT_NE(JobSecret::read("--secret_file", write("sixteen bytes is")).mac("x"), mac);
}

TEST_F(JobSecretTest, RefusesWhatOthersKnowOrIsNone) {
  EXPECT_THAT(refusal(write("0123456789abcdef", 0640)),
              HasSubstr("/secret: other users may read or write it; run chmod 600"));
  EXPECT_THAT(refusal(write("0123456789abcdef", 0602)), HasSubstr("other users may read or write it"));
  EXPECT_THAT(refusal(write("0123456789abcde\n")), HasSubstr("has 15 bytes, but a secret must have 16 to 4096"));
  EXPECT_THAT(refusal(write(std::string(4097, 'a'))), HasSubstr("has 4097 bytes"));
  EXPECT_THAT(refusal(folder / "none"), HasSubstr("--secret_file: " + (folder / "none") + ": cannot be read: No such"));
  EXPECT_THAT(refusal(folder.path()), HasSubstr("is not a regular file"));
}

TEST_F(JobSecretTest, IsThatOfTheEnvironment) {
  EXPECT_FALSE(JobSecret::of_environment({}).has_value());
  EXPECT_FALSE(JobSecret::of_environment({{kSecretVariable, ""}}).has_value());
  EXPECT_TRUE(JobSecret::of_environment({{kSecretVariable, write("0123456789abcdef")}}).has_value());
  EXPECT_THAT(error_message<c10::ValueError>([] {
                JobSecret::of_environment({{kSecretVariable, "/none"}});
              }),
              HasSubstr("NARROWCAST_SECRET_FILE: /none: "));
}

TEST(RandomNonce, IsAnotherOneEachTime) {
  EXPECT_EQ(random_nonce().size(), 64);
  EXPECT_NE(random_nonce(), random_nonce());
}

TEST(EqualInConstantTime, ComparesAll) {
  EXPECT_TRUE(equal_in_constant_time("abc", "abc"));
  EXPECT_FALSE(equal_in_constant_time("abc", "abd"));
  EXPECT_FALSE(equal_in_constant_time("abc", "ab"));
}

}  // namespace
}  // namespace narrowcast::program
