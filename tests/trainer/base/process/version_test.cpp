#include <narrowcast/version.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace narrowcast {
namespace {

TEST(Version, IsThreeNumbers) { EXPECT_THAT(version(), ::testing::MatchesRegex("[0-9]+\\.[0-9]+\\.[0-9]+")); }

}  // namespace
}  // namespace narrowcast
