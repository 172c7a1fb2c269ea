#include "trainer/train/training/device.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>

#include "tests/support/error_message.h"

namespace narrowcast {
namespace {

using ::testing::AnyOf;
using testing::error_message;
using ::testing::HasSubstr;

WorkerEnv rank_of_node(int64_t local_rank, int64_t local_world_size = 1) {
  WorkerEnv env;
  env.local_rank = local_rank;
  env.local_world_size = local_world_size;
  return env;
}

TEST(Device, TheCpuIsAlwaysThere) {
  EXPECT_EQ(choose_device("cpu", rank_of_node(0)), at::Device(at::kCPU));
  EXPECT_EQ(choose_device("cpu", rank_of_node(7)), at::Device(at::kCPU));
}

TEST(Device, AutoIsAGpuWhereEachRankOfTheNodeHasOne) {
  EXPECT_EQ(choose_device("auto", rank_of_node(0, 1)).is_cuda(), gpu_count() > 0);
  EXPECT_TRUE(choose_device("auto", rank_of_node(0, gpu_count() + 1)).is_cpu());
}

TEST(Device, AGpuThatIsNotThereIsNamed) {
  const std::string message =
      error_message<c10::ValueError>([] { choose_device("cuda:" + std::to_string(gpu_count()), rank_of_node(0)); });
  EXPECT_THAT(message, HasSubstr("device: cuda:" + std::to_string(gpu_count())));
  EXPECT_THAT(message, AnyOf(HasSubstr("this is one without"), HasSubstr("no GPU or no driver"), HasSubstr("can use")));
  EXPECT_THROW(choose_device("cuda", rank_of_node(gpu_count())), c10::ValueError);
}

TEST(Device, NamesThatMeanNothing) {
  EXPECT_EQ(error_message<c10::ValueError>([] { choose_device("gpu", rank_of_node(0)); }),
            "device: unknown name 'gpu'; known: auto, cpu, cuda, cuda:N");
  for (const char* const name : {"cuda:", "cuda:x", "cuda:-1", "cuda:1x"}) {
    EXPECT_EQ(error_message<c10::ValueError>([&] { choose_device(name, rank_of_node(0)); }),
              "device: " + std::string(name) + " names no GPU; an example is cuda:0");
  }
}

TEST(Device, BackendsFollowIt) {
  const at::Device gpu(at::kCUDA, 0);
  EXPECT_EQ(choose_backend("auto", at::kCPU), "gloo");
  EXPECT_EQ(choose_backend("gloo", at::kCPU), "gloo");
  EXPECT_EQ(choose_backend("auto", gpu), "nccl");
  EXPECT_EQ(choose_backend("nccl", gpu), "nccl");
}

TEST(Device, BackendsThatDoNotMoveItsTensorsAreRefused) {
  EXPECT_EQ(error_message<c10::ValueError>([] { choose_backend("nccl", at::kCPU); }),
            "backend: nccl does not move tensors on the CPU, where this rank computes; gloo does");
  EXPECT_EQ(error_message<c10::ValueError>([] { choose_backend("gloo", at::Device(at::kCUDA, 0)); }),
            "backend: gloo does not move tensors on a GPU, where this rank computes; nccl does");
  EXPECT_EQ(error_message<c10::ValueError>([] { choose_backend("mpi", at::kCPU); }),
            "backend: unknown name 'mpi'; known: auto, gloo, nccl");
}

}  // namespace
}  // namespace narrowcast
