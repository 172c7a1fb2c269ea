// A process that cannot use NCCL: in a build without it, or without a GPU.
#include <ATen/Context.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <narrowcast/process_group.h>
#include "tests/support/error_message.h"

namespace narrowcast {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

TEST(ProcessGroupWithoutGpuTest, SaysWhatNcclLacks) {
  if (at::globalContext().hasCUDA()) {
    GTEST_SKIP() << "a GPU, which NCCL can use";
  }
  EXPECT_THAT(testing::error_message<c10::ValueError>([] { init_process_group(WorkerEnv{}, {.backend = "nccl"}); }),
              AnyOf(HasSubstr("'nccl' is not part of this build"), HasSubstr("backend 'nccl' needs a GPU: rank 0 is")));
}

}  // namespace
}  // namespace narrowcast
