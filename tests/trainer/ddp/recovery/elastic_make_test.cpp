// Losses while a program makes the object of its steps.
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "tests/support/error_message.h"
#include "tests/support/ranks.h"
#include "trainer/ddp/recovery/elastic_run.h"

namespace gloo {
// As Gloo's errors, whose names begin with its namespace.
struct ErrorOfTest : std::runtime_error {
  using runtime_error::runtime_error;
};
}  // namespace gloo

namespace narrowcast::recovery {
namespace {

using ::testing::HasSubstr;

// A collective that is not one of this library tells of a loss as Gloo does.
TEST(ElasticMake, AnErrorOfGlooIsALoss) {
  ElasticState state;
  const ElasticOptions options;
  testing::run_ranks(1, [&](int64_t /*rank*/, const ProcessGroupPtr& group) {
    const ElasticRun::MakeSteps make = [](const ProcessGroupPtr& /*group*/) -> ElasticSteps {
      throw gloo::ErrorOfTest("Connection closed by peer");
    };
    ElasticRun run(state, options, make);
    EXPECT_THAT(testing::error_message<c10::DistBackendError>([&] { run.take_steps(group, {}); }),
                HasSubstr("Connection closed by peer"));
  });
}

}  // namespace
}  // namespace narrowcast::recovery
