#include <narrowcast/ddp_options.h>

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

TEST(DdpOptionsTest, WithoutASizeOneBucketHoldsAll) {
  const auto options = DdpOptions().bucket_cap_mb(std::nullopt).first_bucket_mb(2);
  EXPECT_NO_THROW(options.validate());
  EXPECT_EQ(options.bucket_bytes_cap(), int64_t{1} << 40);
  EXPECT_EQ(options.first_bucket_bytes_cap(), int64_t{1} << 40);
  EXPECT_EQ(DdpOptions(options).bucket_cap_mb(3).first_bucket_bytes_cap(), 2 << 20);
  EXPECT_EQ(DdpOptions(options).bucket_cap_mb(1).first_bucket_bytes_cap(), 1 << 20) << "a smaller choice";
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

TEST(DdpOptionsTest, RejectsAChannelSizeThatIsNoneOrHasNoEffect) {
  const auto per_channel = DdpOptions().hook("quantize_per_channel");
  EXPECT_NO_THROW(DdpOptions(per_channel).channel_size(1).validate());
  EXPECT_THAT(error_of(DdpOptions(per_channel).channel_size(0)), HasSubstr("channel_size: must be at least 1"));
  EXPECT_THAT(error_of(DdpOptions(per_channel).channel_size(-512)), HasSubstr("but is -512"));
  EXPECT_THAT(error_of(DdpOptions().hook("int8").channel_size(512)),
              HasSubstr("channel_size: 512 has no effect with the hook 'int8'"));
}

TEST(DdpOptionsTest, AnotherHookTakesNoOptionsOver) {
  const auto options = DdpOptions().hook("int8").wire({.error_feedback = true}).bucket_cap_mb(2);
  EXPECT_EQ(options.with_hook("int8").wire(), options.wire());
  const DdpOptions none = options.with_hook("none");
  EXPECT_NO_THROW(none.validate());
  EXPECT_EQ(none.hook(), "none");
  EXPECT_EQ(none.bucket_cap_mb(), 2);
  const auto per_channel = DdpOptions().hook("quantize_per_channel").channel_size(7);
  EXPECT_FALSE(per_channel.with_hook("int8").channel_size().has_value());
  const auto power_sgd = DdpOptions().hook("power_sgd").power_sgd({.rank = 3});
  EXPECT_EQ(power_sgd.with_hook("power_sgd").power_sgd().rank, 3);
  EXPECT_EQ(power_sgd.with_hook("int8").power_sgd(), hooks::PowerSgdOptions{});
  EXPECT_EQ(power_sgd.hook_options(nullptr).power_sgd.rank, 3);
}

TEST(DdpOptionsTest, RejectsOptionsThatContradict) {
  EXPECT_THAT(error_of(DdpOptions().static_graph(true).find_unused_parameters(true)),
              AllOf(HasSubstr("static_graph"), HasSubstr("find_unused_parameters")));
}

}  // namespace
}  // namespace narrowcast
