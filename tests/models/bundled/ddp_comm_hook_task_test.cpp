#include "models/bundled/ddp_comm_hook_task.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <narrowcast/models.h>

namespace narrowcast::models {
namespace {

TEST(DdpCommHookTask, StartsAsUpstreamDoesWhateverTheDefaultGeneratorHolds) {
  at::manual_seed(0);
  const at::Tensor expected = at::randn({40, 20});
  at::manual_seed(123);
  DdpCommHookTask model;
  ASSERT_EQ(model.named_parameters().keys(), std::vector<std::string>({"t0.p"}));
  EXPECT_TRUE(model.named_parameters()["t0.p"].equal(expected));
}

TEST(DdpCommHookTask, LeavesTheDefaultGeneratorAlone) {
  at::manual_seed(7);
  const at::Tensor expected = at::randn({3});
  at::manual_seed(7);
  const DdpCommHookTask model;
  const Batch batch = DdpCommHookTask::reference_batch(1);
  EXPECT_TRUE(at::randn({3}).equal(expected));
}

TEST(DdpCommHookTask, ReferenceInputIsUpstreams) {
  at::manual_seed(2020);
  const at::Tensor expected = at::randn({40, 20});
  const Batch batch = DdpCommHookTask::reference_batch(3);
  EXPECT_TRUE(batch.inputs.equal(expected));
  EXPECT_EQ(batch.targets.item<int64_t>(), 3);
}

class DdpCommHookTaskRanks : public ::testing::TestWithParam<int64_t> {};

TEST_P(DdpCommHookTaskRanks, ForwardRaisesTheInputToOnePlusRank) {
  DdpCommHookTask model;
  const at::Tensor x = DdpCommHookTask::reference_batch(0).inputs;
  const at::Tensor p = model.named_parameters()["t0.p"];
  EXPECT_TRUE(model.forward(x, GetParam()).equal(p * x.pow(1 + GetParam())));
}

TEST_P(DdpCommHookTaskRanks, GradientIsThePowerOver800) {
  DdpCommHookTask model;
  const Batch batch = DdpCommHookTask::reference_batch(GetParam());
  model.forward(batch).backward();
  const at::Tensor expected = batch.inputs.pow(1 + GetParam()) * 0.00125f;
  EXPECT_TRUE(model.named_parameters()["t0.p"].grad().equal(expected));
}

INSTANTIATE_TEST_SUITE_P(Ranks, DdpCommHookTaskRanks, ::testing::Values(0, 1, 2, 7));

TEST(DdpCommHookTask, WrongInputsAreErrors) {
  DdpCommHookTask model;
  EXPECT_THROW(model.forward(at::zeros({20, 40}), 0), c10::ValueError);
  EXPECT_THROW(model.forward(at::zeros({40, 20}), -1), c10::ValueError);
  EXPECT_THROW(model.forward(at::zeros({40, 20}, at::kLong), 0), c10::TypeError);
  EXPECT_THROW(model.forward({at::zeros({40, 20}), at::zeros({2}, at::kLong)}), c10::ValueError);
}

TEST(DdpCommHookTask, HasNoOptions) {
  EXPECT_EQ(DdpCommHookTask().options(), ModelOptions());
  EXPECT_THROW(create_model("ddp_comm_hook_task", {{"width", 3}}), c10::ValueError);
}

}  // namespace
}  // namespace narrowcast::models
