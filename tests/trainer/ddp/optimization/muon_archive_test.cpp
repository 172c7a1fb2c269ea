// Muon's options and state in archives of torch::save.
#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/serialize.h>

#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <narrowcast/muon.h>
#include "tests/support/error_message.h"
#include "tests/trainer/ddp/optimization/small_muon_model.h"

namespace narrowcast::optim {
namespace {

using testing::error_message;
using ::testing::HasSubstr;
using torch::optim::OptimizerParamGroup;

TEST(MuonArchive, GoesOnFromAnArchiveBitForBit) {
  SmallModel whole;
  whole.compute_gradients(1);
  whole.optimizer->step();
  std::stringstream file;
  torch::save(*whole.optimizer, file);
  SmallModel resumed(
      MuonOptions(7).weight_decay(3).momentum(0.1).nesterov(false).eps(1).ns_steps(9).ns_coefficients({1, 2, 3}));
  torch::load(*resumed.optimizer, file);
  const auto& options = static_cast<const MuonOptions&>(resumed.optimizer->param_groups()[0].options());
  EXPECT_EQ(options.ns_dtype(), at::kFloat);
  EXPECT_EQ(options.ns_steps(), 5);
  {
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < 4; ++i) resumed.parameters[i].copy_(whole.parameters[i]);
  }
  for (SmallModel* const model : {&whole, &resumed}) {
    model->compute_gradients(2);
    model->optimizer->step();
  }
  expect_equal(whole, resumed);
}

// Ranks may have agreed on a dtype since the optimizer was made.
TEST(MuonArchive, AnArchiveWithoutADtypeLeavesTheDtypeAlone) {
  const SmallModel saved{MuonOptions(0.5)};
  std::stringstream file;
  torch::save(*saved.optimizer, file);
  SmallModel resumed(MuonOptions(0.25).ns_dtype(at::kBFloat16));
  torch::load(*resumed.optimizer, file);
  const auto& options = static_cast<const MuonOptions&>(resumed.optimizer->param_groups()[0].options());
  EXPECT_EQ(options.lr(), 0.5);
  EXPECT_EQ(options.ns_dtype(), at::kBFloat16);
}

// The optimizer has taken a step, and gets its state from before that step.
TEST(MuonArchive, AStateThatWasNotSavedIsGone) {
  SmallModel model;
  std::stringstream file;
  torch::save(*model.optimizer, file);
  model.compute_gradients(1);
  model.optimizer->step();
  EXPECT_EQ(model.optimizer->state().size(), 4);
  torch::load(*model.optimizer, file);
  EXPECT_TRUE(model.optimizer->state().empty());
}

TEST(MuonArchive, RefusesAnArchiveOfOtherGroups) {
  SmallModel model;
  std::stringstream file;
  torch::save(*model.optimizer, file);
  Muon one_group({made(1, {3, 3})});
  EXPECT_THAT(error_message<c10::ValueError>([&] { torch::load(one_group, file); }),
              HasSubstr("2 groups were saved, but it has 1"));
  file.seekg(0);
  std::vector<OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<at::Tensor>{made(1, {3, 3})});
  groups.emplace_back(std::vector<at::Tensor>{made(2, {3, 3})});
  Muon matrices(groups);
  EXPECT_THAT(error_message<c10::ValueError>([&] { torch::load(matrices, file); }),
              HasSubstr("group 0 was saved with 2 parameters of Muon, but it has 1 of Muon"));
}

// Kernels take a state to be as large as its parameter.
TEST(MuonArchive, RefusesAnArchiveOfOtherSizesAndChangesNothing) {
  const auto optimizer_of = [](int64_t rows, at::ScalarType dtype) {
    std::vector<OptimizerParamGroup> groups;
    groups.emplace_back(std::vector<at::Tensor>{made(1, {3, 3})});
    groups.emplace_back(std::vector<at::Tensor>{made(2, {rows, 4}).detach().to(dtype).requires_grad_()},
                        std::make_unique<torch::optim::AdamWOptions>(0.01));
    auto optimizer = std::make_unique<Muon>(groups);
    for (OptimizerParamGroup& group : optimizer->param_groups()) {
      for (at::Tensor& parameter : group.params()) parameter.mutable_grad() = at::ones_like(parameter);
    }
    optimizer->step();
    return optimizer;
  };
  const auto refusal = [&](int64_t rows, at::ScalarType dtype) {
    std::stringstream file;
    torch::save(*optimizer_of(rows, dtype), file);
    const auto other = optimizer_of(6, at::kFloat);
    const auto& matrix = other->param_groups()[0].params()[0];
    const auto momentum = [&] {
      return static_cast<MuonParamState&>(*other->state().at(matrix.unsafeGetTensorImpl())).momentum_buffer();
    };
    const at::Tensor before = momentum();
    const std::string message = error_message<c10::ValueError>([&] { torch::load(*other, file); });
    EXPECT_EQ(momentum().is_same(before), message != "nothing was thrown");
    return message;
  };
  EXPECT_EQ(refusal(6, at::kFloat), "nothing was thrown");
  EXPECT_THAT(refusal(5, at::kFloat), HasSubstr("saved state of parameter 0 of group 1 is Float[5, 4], but the"));
  EXPECT_THAT(refusal(6, at::kDouble), HasSubstr("is Double[6, 4], but the parameter is Float[6, 4]"));
}

TEST(MuonArchive, KnowsTheFactorsOfTheLearningRateByName) {
  EXPECT_EQ(parse_adjust_lr("original"), AdjustLr::kOriginal);
  EXPECT_EQ(to_string(AdjustLr::kMatchRmsAdamW), "match_rms_adamw");
  EXPECT_THROW(parse_adjust_lr("adamw"), c10::ValueError);
  EXPECT_THROW(to_string(static_cast<AdjustLr>(7)), c10::ValueError);
}

}  // namespace
}  // namespace narrowcast::optim
