#include "trainer/train/data/dataset.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include "tests/support/error_message.h"

namespace narrowcast::data {
namespace {

using narrowcast::testing::error_message;

TEST(CheckIndices, AcceptsEveryIndexOfTheSetAndRepeats) {
  EXPECT_NO_THROW(check_indices({0, 4, 4, 1}, 5));
  EXPECT_NO_THROW(check_indices({0}, 1));
}

TEST(CheckIndices, NamesTheRangeAndTheIndexOutsideIt) {
  const auto error = [](at::IntArrayRef indices) {
    return error_message<c10::ValueError>([&] { check_indices(indices, 5); });
  };
  EXPECT_EQ(error({0, 5}), "indices must be in 0..4, but one is 5");
  EXPECT_EQ(error({-1}), "indices must be in 0..4, but one is -1");
  EXPECT_EQ(error({INT64_MIN}), "indices must be in 0..4, but one is -9223372036854775808");
  EXPECT_EQ(error({}), "indices must not be empty");
}

}  // namespace
}  // namespace narrowcast::data
