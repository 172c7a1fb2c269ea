#include "models/imported/compiled_graph.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "models/imported/package_model.h"
#include "tests/models/imported/package_gradients.h"
#include "tests/models/imported/small_package.h"
#include "tests/support/error_message.h"

namespace narrowcast::models {
namespace {

using testing::copy_of;
using testing::error_message;
using ::testing::HasSubstr;
using testing::SmallPackage;

TEST(CompiledGraph, FailuresOfTheCompiledCodeAreErrors) {
  SmallPackage package;
  package.train = "fail";
  const auto model = testing::model_of(package);
  model->compute_loss_in_backward();
  const at::Tensor loss = model->forward(testing::small_batch(10));
  ::testing::internal::CaptureStderr();
  const std::string message = error_message<c10::ValueError>([&] { loss.backward(); });
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("Error: this graph fails"));
  EXPECT_THAT(message,
              HasSubstr("net.pt2: its training step failed; AOTInductor's message is on this rank's stderr: "));
  EXPECT_EQ(copy_of(*model).at("steps").item<int64_t>(), 5);
}

TEST(CompiledGraph, AFileThatIsNoLibraryIsAnError) {
  const std::string message = error_message<c10::ValueError>(
      [] { CompiledGraph("net.pt2: its evaluation", {.library = "no library", .operators = ""}); });
  EXPECT_THAT(message, HasSubstr("net.pt2: its evaluation: cannot be loaded: "));
}

}  // namespace
}  // namespace narrowcast::models
