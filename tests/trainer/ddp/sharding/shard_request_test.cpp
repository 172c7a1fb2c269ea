// The parameters of an optimizer that can be sharded, and the optimizers that cannot.
#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/sgd.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <narrowcast/muon.h>
#include "tests/support/error_message.h"
#include "trainer/ddp/optimization/newton_schulz.h"
#include "trainer/ddp/sharding/shard_agreement.h"

namespace narrowcast::sharding {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using torch::optim::OptimizerParamGroup;

class OptimizerOfNoKind final : public torch::optim::Optimizer {
 public:
  explicit OptimizerOfNoKind(const std::vector<at::Tensor>& parameters)
      : Optimizer(parameters, std::make_unique<torch::optim::SGDOptions>(0.1)) {}
  at::Tensor step(LossClosure /*closure*/ = nullptr) override { return {}; }
};

std::string request_error(const torch::optim::Optimizer& optimizer, const ShardOptions& options = {}) {
  return testing::error_message<c10::ValueError>([&] { shard_request(optimizer, options); });
}

at::Tensor zeros_that_train(at::IntArrayRef sizes) { return at::zeros(sizes).requires_grad_(); }

TEST(ShardRequestTest, HasEachParameterThatGetsAGradientOnce) {
  const at::Tensor first = zeros_that_train({3, 4});
  const at::Tensor frozen = at::zeros({5});
  const at::Tensor second = zeros_that_train({6});
  std::vector<OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<at::Tensor>{first, frozen});
  groups.emplace_back(std::vector<at::Tensor>{second});
  torch::optim::AdamW adamw(groups);
  adamw.param_groups()[1].params().push_back(first);  // The optimizer itself refuses it only when it is made.
  const ShardRequest request = shard_request(adamw, ShardOptions().node_size(2));
  ASSERT_EQ(request.parameters.size(), 2);
  EXPECT_TRUE(request.parameters[0].is_same(first));
  EXPECT_TRUE(request.parameters[1].is_same(second));
  EXPECT_THAT(request.groups, ElementsAre(0, 1));
  EXPECT_THAT(request.costs, IsEmpty()) << "an elementwise step costs as much as it has elements";
  EXPECT_EQ(request.options.node_size(), 2);
  EXPECT_FALSE(request.hook.has_value());
}

TEST(ShardRequestTest, NamesTheOptimizerAndTheFormat) {
  torch::optim::AdamW adamw({zeros_that_train({3})});
  const auto values_of = [&](const ShardOptions& options) {
    std::string text;
    for (const NamedValue& value : shard_request(adamw, options).values) text += value.name + ": " + value.value + "; ";
    return text;
  };
  EXPECT_EQ(values_of({}), "the optimizer: AdamW; parameter_format: not set; ");
  EXPECT_THAT(values_of(ShardOptions().parameter_format(WireFormat::kBf16)), HasSubstr("parameter_format: bf16"));
}

TEST(ShardRequestTest, HasTheCostsOfMuonsSteps) {
  std::vector<OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<at::Tensor>{zeros_that_train({64, 256})},
                      std::make_unique<optim::MuonOptions>(optim::MuonOptions().ns_steps(3)));
  groups.emplace_back(std::vector<at::Tensor>{zeros_that_train({64, 256})},
                      std::make_unique<torch::optim::AdamWOptions>());
  const optim::Muon muon(groups);
  const ShardRequest request = shard_request(muon, ShardOptions().whole_parameters(true));
  ASSERT_EQ(request.costs.size(), 2);
  EXPECT_GT(request.costs[1], 0);
  EXPECT_EQ(request.costs[0], request.costs[1] + optim::orthogonalization_cost({64, 256}, 3));
}

TEST(ShardRequestTest, RefusesOptimizersThatCannotBeSharded) {
  const at::Tensor parameter = zeros_that_train({3, 3});
  const ShardOptions whole = ShardOptions().whole_parameters(true);
  const torch::optim::LBFGS lbfgs({parameter});
  EXPECT_THAT(request_error(lbfgs, whole), HasSubstr("LBFGS computes with all parameters at once"));
  const torch::optim::Adagrad adagrad({parameter});
  EXPECT_THAT(request_error(adagrad, whole), HasSubstr("Adagrad makes its state in its constructor"));
  torch::optim::SGD sgd({parameter}, torch::optim::SGDOptions(0.1).momentum(0.9));
  EXPECT_EQ(request_error(sgd), "nothing was thrown");
  parameter.mutable_grad() = at::ones({3, 3});
  sgd.step();
  EXPECT_THAT(request_error(sgd), HasSubstr("already has a state: shard it before its first step"));
}

// A step of an unknown class may need more than its shard's elements.
TEST(ShardRequestTest, OptimizersThatMayNeedWholeParametersMustGetThem) {
  const at::Tensor parameter = zeros_that_train({3, 3});
  const ShardOptions whole = ShardOptions().whole_parameters(true);
  const OptimizerOfNoKind unknown({parameter});
  EXPECT_THAT(request_error(unknown), HasSubstr("none of Adam, AdamW, RMSprop and SGD"));
  const ShardRequest request = shard_request(unknown, whole);
  EXPECT_EQ(request.values.at(0).value, "another one");
  EXPECT_THAT(request.costs, IsEmpty());
  const optim::Muon muon({parameter});
  EXPECT_THAT(request_error(muon), HasSubstr("set ShardOptions::whole_parameters"));
  EXPECT_EQ(request_error(muon, whole), "nothing was thrown");
}

}  // namespace
}  // namespace narrowcast::sharding
