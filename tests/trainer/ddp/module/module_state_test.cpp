#include <narrowcast/module_state.h>

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <string>
#include <vector>

#include "tests/support/ranks.h"

namespace narrowcast {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::run_ranks;

std::vector<std::string> names(const std::vector<NamedTensor>& tensors) {
  std::vector<std::string> list;
  for (const NamedTensor& named : tensors) list.push_back(named.name);
  return list;
}

struct TiedNetImpl : torch::nn::Module {
  TiedNetImpl() {
    embedding = register_module("embedding", torch::nn::Embedding(7, 3));
    head = register_module("head", torch::nn::Linear(torch::nn::LinearOptions(3, 7).bias(false)));
    head->weight = embedding->weight;
    head->register_parameter("tied", embedding->weight);
  }
  torch::nn::Embedding embedding{nullptr};
  torch::nn::Linear head{nullptr};
};

TEST(ModuleStateTest, ListsParametersAndBuffersInOrder) {
  torch::nn::Sequential net(torch::nn::Linear(2, 3), torch::nn::BatchNorm1d(3));
  const ModuleState state = module_state(net.ptr());
  EXPECT_THAT(names(state.parameters), ElementsAre("0.weight", "0.bias", "1.weight", "1.bias"));
  EXPECT_THAT(names(state.buffers), ElementsAre("1.running_mean", "1.running_var", "1.num_batches_tracked"));
}

TEST(ModuleStateTest, ListsATiedParameterOnce) {
  const auto net = std::make_shared<TiedNetImpl>();
  const ModuleState state = module_state(net);
  EXPECT_THAT(names(state.parameters), ElementsAre("embedding.weight", "head.weight"));
  EXPECT_EQ(state.parameters[0].tensor.unsafeGetTensorImpl(), net->embedding->weight.unsafeGetTensorImpl());
}

TEST(ModuleStateTest, ReadsTorchScriptModules) {
  torch::jit::Module script("Script");
  const at::Tensor weight = at::ones({2, 2});
  script.register_parameter("weight", weight, /*is_buffer=*/false);
  script.register_parameter("same", weight, /*is_buffer=*/false);
  script.register_buffer("mean", at::zeros({2}));
  const ModuleState state = module_state(script);
  EXPECT_THAT(names(state.parameters), ElementsAre("weight"));
  EXPECT_THAT(names(state.buffers), ElementsAre("mean"));
}

TEST(ModuleStateTest, FrozenParametersAreNotTrainable) {
  torch::nn::Linear linear(2, 2);
  linear->weight.requires_grad_(false);
  const ModuleState state = module_state(linear.ptr());
  EXPECT_THAT(names(state.parameters), ElementsAre("weight", "bias"));
  EXPECT_THAT(names(state.trainable()), ElementsAre("bias"));
}

TEST(ModuleStateTest, RejectsSparseGradients) {
  torch::nn::Sequential net(torch::nn::Embedding(torch::nn::EmbeddingOptions(4, 2).sparse(true)));
  try {
    module_state(net.ptr());
    FAIL() << "no error";
  } catch (const c10::ValueError& error) {
    EXPECT_THAT(error.what_without_backtrace(), AllOf(HasSubstr("module '0'"), HasSubstr("sparse")));
  }
  EXPECT_THROW(module_state(torch::nn::EmbeddingBag(torch::nn::EmbeddingBagOptions(4, 2).sparse(true)).ptr()),
               c10::ValueError);
  EXPECT_THROW(module_state(std::shared_ptr<torch::nn::Module>()), c10::ValueError);
}

std::string error_of_buffer(const at::Tensor& buffer) {
  torch::jit::Module script("Script");
  script.register_parameter("weight", at::ones({2, 2}).requires_grad_(), /*is_buffer=*/false);
  script.register_buffer("extra", buffer);
  try {
    module_state(script);
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  }
  return "nothing";
}

TEST(ModuleStateTest, NamesWhatCannotBeBroadcast) {
  EXPECT_EQ(error_of_buffer(at::ones({2}).to_sparse()),
            "buffer 'extra' has the layout Sparse, but only dense tensors can be broadcast");
  EXPECT_EQ(error_of_buffer(at::quantize_per_tensor(at::ones({2}), 0.5, 0, at::kQInt8)),
            "buffer 'extra' is QInt8, but quantised tensors cannot be broadcast");
  EXPECT_EQ(error_of_buffer(at::ones({2}, at::kComplexDouble)), "nothing");
}

TEST(ModuleStateTest, DescribesWhatMustBeEqual) {
  torch::nn::Linear linear(2, 3);
  linear->bias.requires_grad_(false);
  const std::vector<NamedValue> values = describe(module_state(linear.ptr()));
  ASSERT_EQ(values.size(), 2u);
  EXPECT_EQ(values[0].name, "parameter 'weight'");
  EXPECT_EQ(values[0].value, "Float [3, 2] strides [2, 1] on cpu with gradient");
  EXPECT_EQ(values[1].value, "Float [3] strides [1] on cpu");
}

std::string trainable_error(const ModuleState& state) {
  std::string message = "nothing";
  run_ranks(1, [&](int64_t /*rank*/, const ProcessGroupPtr& group) {
    try {
      check_trainable(state, group);
    } catch (const c10::ValueError& error) {
      message = error.what_without_backtrace();
    }
  });
  return message;
}

at::Tensor parameter_on(at::Device device) {
  return at::zeros({1}, at::TensorOptions().device(device)).requires_grad_(true);
}

TEST(ModuleStateTest, ChecksThatThereIsSomethingToTrain) {
  EXPECT_EQ(trainable_error({{{"w", parameter_on(at::kCPU)}}, {}}), "nothing");
  EXPECT_THAT(trainable_error({{{"w", at::zeros({1})}}, {}}), HasSubstr("no parameter that requires a gradient"));
  EXPECT_THAT(trainable_error({}), HasSubstr("of 0 parameters"));
}

TEST(ModuleStateTest, ChecksDevices) {
  EXPECT_THAT(trainable_error({{{"a", parameter_on(at::kCPU)}, {"b", parameter_on(at::kMeta)}}, {}}),
              AllOf(HasSubstr("'b' is on meta"), HasSubstr("'a' is on cpu")));
  EXPECT_THAT(trainable_error({{{"a", parameter_on(at::kMeta)}}, {}}),
              AllOf(HasSubstr("'a' is on meta"), HasSubstr("gloo")));
}

}  // namespace
}  // namespace narrowcast
