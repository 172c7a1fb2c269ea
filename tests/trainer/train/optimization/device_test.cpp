#include "trainer/train/optimization/device.h"

#include <ATen/Context.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/support/devices.h"
#include "tests/support/error_message.h"
#include "tests/trainer/train/training/small_text.h"

namespace narrowcast::training {
namespace {

using ::testing::AnyOf;
using testing::error_message;
using ::testing::HasSubstr;
using testing::small_text;

WorkerEnv rank_of_node(int64_t local_rank, int64_t local_world_size = 1) {
  WorkerEnv env;
  env.local_rank = local_rank;
  env.local_world_size = local_world_size;
  return env;
}

// A module that counts its passes in a buffer, and draws random numbers.
struct Drawing : torch::nn::Module {
  Drawing() : passes(register_buffer("passes", at::zeros({}))) {}
  at::Tensor forward() const { return passes.add_(1) + at::rand({4}); }
  at::Tensor passes;
};

TEST(OnTrial, PassesComputeTheSameAndLeaveNothingBehind) {
  at::manual_seed(3);
  const Drawing module;
  std::vector<at::Tensor> results;
  for (int pass = 0; pass < 2; ++pass) {
    on_trial(module, [&] { results.push_back(module.forward()); });
  }
  EXPECT_TRUE(results[1].equal(results[0]));
  EXPECT_EQ(module.passes.item<double>(), 0);
  EXPECT_TRUE(module.forward().equal(results[0])) << "as if nothing had been drawn";
}

TEST(SeedDraws, RanksAndStepsDrawForThemselves) {
  const auto drawn = [](const DrawSeed& seed) {
    seed_draws(at::kCPU, seed);
    return at::rand({4});
  };
  const DrawSeed seed = {.seed = 7, .rank = 1, .step = 3};
  const at::Tensor first = drawn(seed);
  for (const DrawSeed& other : {DrawSeed{.seed = 8, .rank = 1, .step = 3}, DrawSeed{.seed = 7, .rank = 2, .step = 3},
                                DrawSeed{.seed = 7, .rank = 1, .step = 4}, DrawSeed{.seed = 7, .rank = 3, .step = 1},
                                DrawSeed{.seed = ~uint64_t{0}, .rank = 1, .step = 3}}) {
    EXPECT_FALSE(drawn(other).equal(first));
  }
  EXPECT_TRUE(drawn(seed).equal(first)) << "whatever was drawn before";
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
  EXPECT_THAT(message,
              AnyOf(HasSubstr("this build has no CUDA"), HasSubstr("no GPU or no driver"), HasSubstr("can use")));
  EXPECT_THROW(choose_device("cuda", rank_of_node(gpu_count())), c10::ValueError);
}

TEST(Device, NamesThatMeanNothing) {
  EXPECT_EQ(error_message<c10::ValueError>([] { choose_device("gpu", rank_of_node(0)); }),
            "device: unknown name 'gpu'; known: auto, cpu, cuda, cuda:N");
  for (const char* const name : {"cuda:", "cuda:x", "cuda:-1", "cuda:1x"}) {
    EXPECT_EQ(error_message<c10::ValueError>([&] { choose_device(name, rank_of_node(0)); }),
              "device: " + std::string(name) + " is not a GPU; example: cuda:0");
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

class BatchFeedTest : public test::DeviceTest {
 protected:
  const at::Device device{GetParam(), static_cast<c10::DeviceIndex>(GetParam() == at::kCUDA ? 0 : -1)};
  const data::TextDataset dataset = small_text();
};

TEST_P(BatchFeedTest, GivesTheBatchesThatWerePrepared) {
  BatchFeed feed(dataset, device);
  feed.prepare({1, 2});
  for (int64_t first = 1; first < 20; ++first) {
    const models::Batch batch = feed.take();
    feed.prepare({first + 1, first + 2});  // While the batch before is still in use.
    const models::Batch expected = dataset.training_batch({first, first + 1});
    EXPECT_EQ(batch.inputs.device(), device);
    EXPECT_TRUE(at::equal(batch.inputs.cpu(), expected.inputs)) << first;
    EXPECT_TRUE(at::equal(batch.targets.cpu(), expected.targets)) << first;
  }
}

TEST_P(BatchFeedTest, HasNothingThatWasNotPrepared) {
  BatchFeed feed(dataset, device);
  EXPECT_THROW(feed.take(), c10::Error);
  feed.prepare({0});
  feed.take();
  EXPECT_THROW(feed.take(), c10::Error);
}

TEST_P(BatchFeedTest, BringsAnyBatchToADevice) {
  const models::Batch batch = dataset.held_out_batch({0, 1});
  const models::Batch there = on_device(batch, device);
  EXPECT_EQ(there.targets.device(), device);
  EXPECT_TRUE(at::equal(there.inputs.cpu(), batch.inputs));
}

INSTANTIATE_TEST_SUITE_P(Devices, BatchFeedTest, test::kDevices, test::name_of_case);

}  // namespace
}  // namespace narrowcast::training
