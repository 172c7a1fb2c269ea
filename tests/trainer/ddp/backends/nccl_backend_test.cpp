// The NCCL backend of a process group, on a machine with a GPU.
#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include <narrowcast/process_group.h>
#include "tests/support/devices.h"
#include "tests/support/error_message.h"

namespace narrowcast {
namespace {

class CudaProcessGroupTest : public ::testing::Test {
 protected:
  void SetUp() override { NARROWCAST_SKIP_WITHOUT(c10::DeviceType::CUDA); }
};

TEST_F(CudaProcessGroupTest, MovesTensorsOfGpusAndOfTheCpu) {
  const ProcessGroupScope scope(WorkerEnv{}, {.backend = "nccl"});
  EXPECT_EQ(scope.group()->getBackendName(), "nccl");
  for (const at::DeviceType device : {at::kCUDA, at::kCPU}) {
    std::vector<at::Tensor> tensors{at::ones({2}, device)};
    scope.group()->allreduce(tensors)->wait();
    EXPECT_TRUE(tensors[0].cpu().equal(at::ones({2}))) << device;
  }
}

TEST_F(CudaProcessGroupTest, NamesAGpuThatThisProcessLacks) {
  EXPECT_THAT(testing::error_message<c10::ValueError>(
                  [] { init_process_group(WorkerEnv{}, {.backend = "nccl", .gpu = 1000}); }),
              ::testing::HasSubstr("rank 0 is configured for GPU 1000, but this process can use "));
}

}  // namespace
}  // namespace narrowcast
