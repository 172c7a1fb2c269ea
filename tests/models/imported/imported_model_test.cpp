#include "models/imported/imported_model.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/error_message.h"

namespace narrowcast::models {
namespace {

using testing::error_message;
using ::testing::HasSubstr;

TEST(Loss, HasItsNames) {
  for (const char* const name : {"cross_entropy", "mse", "bce_with_logits"}) {
    EXPECT_EQ(to_string(parse_loss(name)), name);
  }
  EXPECT_EQ(error_message<c10::ValueError>([] { parse_loss("hinge"); }),
            "loss: must be cross_entropy, mse or bce_with_logits, but is 'hinge'");
}

}  // namespace
}  // namespace narrowcast::models
