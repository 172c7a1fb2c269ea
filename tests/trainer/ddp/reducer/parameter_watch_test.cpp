#include "trainer/ddp/reducer/parameter_watch.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>

#include <string>

#include "tests/trainer/ddp/all/ddp_fixtures.h"

namespace narrowcast {
namespace {

using namespace testing;
using ::testing::IsEmpty;
using ::testing::StartsWith;

ParameterWatch watch_of(const SmallNet& net) { return ParameterWatch(module_state(net.ptr())); }

TEST(ParameterWatchTest, TakesWhatChangesNoGradientsWay) {
  SmallNet net;
  net->first->bias.requires_grad_(false);
  const ParameterWatch watch = watch_of(net);
  net->second->weight.requires_grad_(false);  // Allowed: the Reducer notices this itself.
  EXPECT_THAT(watch.difference(), IsEmpty());
  net->second->weight.requires_grad_(true);
  net->second->weight.set_data(at::zeros({4, 16}));  // Other memory of the same kind.
  net->zero_grad();
  gradients_of(net->forward(at::ones({1, 8}), false).sum(), {net->first->weight});
  net->first->bias.set_data(at::zeros({16}, at::kDouble));
  EXPECT_THAT(watch.difference(), IsEmpty());
}

TEST(ParameterWatchTest, NamesAParameterOfAnotherDtype) {
  SmallNet net;
  const ParameterWatch watch = watch_of(net);
  net->second->to(at::kBFloat16);
  EXPECT_THAT(watch.difference(), StartsWith("parameter 'second.weight' is BFloat16 [4, 16] on cpu, but was Float "
                                             "[4, 16] on cpu when DistributedDataParallel was made; "));
}

// The dtype is the old one again, but the Reducer is no longer notified of the gradient.
TEST(ParameterWatchTest, NamesAParameterThatWasConvertedForthAndBack) {
  SmallNet net;
  const ParameterWatch watch = watch_of(net);
  net->to(at::kDouble);
  net->to(at::kFloat);
  EXPECT_THAT(watch.difference(), StartsWith("parameter 'first.weight' "));
}

TEST(ParameterWatchTest, NamesAParameterOfAnotherShape) {
  SmallNet net;
  const ParameterWatch watch = watch_of(net);
  net->first->weight.set_data(at::zeros({3, 8}));
  EXPECT_THAT(watch.difference(), StartsWith("parameter 'first.weight' is Float [3, 8] on cpu, but was Float [16, 8]"));
}

TEST(ParameterWatchTest, NamesAParameterThatGetsGradientsOnlyNow) {
  SmallNet net;
  net->first->bias.requires_grad_(false);
  const ParameterWatch watch = watch_of(net);
  net->first->bias.requires_grad_(true);
  EXPECT_THAT(watch.difference(), StartsWith("parameter 'first.bias' requires a gradient, but did not when "));
}

TEST(ParameterWatchTest, NamesAParameterThatTakesThePlaceOfAnother) {
  torch::nn::Sequential net(torch::nn::Linear(8, 16), torch::nn::Linear(16, 4));
  const ParameterWatch watch(module_state(net.ptr()));
  EXPECT_THAT(watch.difference(), IsEmpty());
  net->replace_module("1", torch::nn::Linear(16, 4).ptr());
  EXPECT_THAT(watch.difference(),
              StartsWith("parameter '1.weight' of the module is another tensor than parameter '1.weight' was when "));
}

TEST(ParameterWatchTest, CountsParametersThatAreAddedAtTheEnd) {
  torch::nn::Sequential net(torch::nn::Linear(8, 16));
  const ParameterWatch watch(module_state(net.ptr()));
  net->push_back(torch::nn::Linear(16, 4));
  EXPECT_THAT(watch.difference(), StartsWith("the module has 4 parameters, but had 2 when "));
}

}  // namespace
}  // namespace narrowcast
