#include "trainer/ddp/ddp_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "tests/support/error_message.h"

namespace narrowcast {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string error_of(const DdpOptions& options) {
  return testing::error_message<c10::ValueError>([&] { options.validate(); });
}

TEST(DdpOptionsTest, DefaultsArePyTorchs) {
  const DdpOptions options;
  EXPECT_EQ(options.hook(), "none");
  EXPECT_EQ(options.bucket_bytes_cap(), 25 * 1024 * 1024);
  EXPECT_EQ(options.first_bucket_bytes_cap(), 1024 * 1024);
  EXPECT_FALSE(options.find_unused_parameters());
  EXPECT_FALSE(options.gradient_as_bucket_view());
  EXPECT_FALSE(options.static_graph());
  EXPECT_TRUE(options.broadcast_buffers());
  EXPECT_TRUE(options.init_sync());
  EXPECT_NO_THROW(options.validate());
}

TEST(DdpOptionsTest, SettersChain) {
  const DdpOptions options = DdpOptions().hook("int8").bucket_cap_mb(2).static_graph(true);
  EXPECT_EQ(options.hook(), "int8");
  EXPECT_EQ(options.bucket_bytes_cap(), 2 * 1024 * 1024);
  EXPECT_TRUE(options.static_graph());
}

TEST(DdpOptionsTest, TheFirstBucketFollowsASmallCap) {
  EXPECT_EQ(DdpOptions().bucket_cap_mb(0.5).first_bucket_bytes_cap(), 512 * 1024);
  EXPECT_EQ(DdpOptions().bucket_cap_mb(0.5).first_bucket_mb(0.25).first_bucket_bytes_cap(), 256 * 1024);
  EXPECT_EQ(DdpOptions().bucket_cap_mb(1e-9).bucket_bytes_cap(), 1);
}

TEST(DdpOptionsTest, RejectsCapsOutOfRange) {
  EXPECT_THAT(error_of(DdpOptions().bucket_cap_mb(0)), HasSubstr("bucket_cap_mb=0"));
  EXPECT_THAT(error_of(DdpOptions().bucket_cap_mb(-1)), HasSubstr("bucket_cap_mb=-1"));
  EXPECT_THAT(error_of(DdpOptions().bucket_cap_mb(std::numeric_limits<double>::quiet_NaN())),
              HasSubstr("bucket_cap_mb=nan"));
  EXPECT_THAT(error_of(DdpOptions().bucket_cap_mb(1e30)), HasSubstr("bucket_cap_mb=1e+30"));
  EXPECT_THAT(error_of(DdpOptions().first_bucket_mb(0)), HasSubstr("first_bucket_mb=0"));
  EXPECT_THAT(error_of(DdpOptions().first_bucket_mb(26)),
              AllOf(HasSubstr("first_bucket_mb=26"), HasSubstr("bucket_cap_mb=25")));
}

TEST(DdpOptionsTest, RejectsOptionsThatContradict) {
  EXPECT_THAT(error_of(DdpOptions().static_graph(true).find_unused_parameters(true)),
              AllOf(HasSubstr("static_graph"), HasSubstr("find_unused_parameters")));
}

}  // namespace
}  // namespace narrowcast
