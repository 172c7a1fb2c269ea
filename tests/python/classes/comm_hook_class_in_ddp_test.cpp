// torch.classes.narrowcast.CommHook in DistributedDataParallel: the same gradients and parameters as the hook by its
// name.
#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <narrowcast/ddp.h>
#include <narrowcast/hooks.h>
#include "tests/python/classes/hook_script.h"
#include "tests/support/ranks.h"
#include "tests/support/registered_group.h"

namespace narrowcast::classes {
namespace {

using hooks::HookOptions;
using testing::RegisteredGroup;

constexpr int64_t kTrainedSteps = 5;

// On so slow a network "auto" chooses int8, whatever it measures: a bucket takes 0.4 s without it, and even a rank that
// waits for a processor quantises it in less.
constexpr double kSlowGbit = 0.0001;

// The class's object as a custom hook.
class ClassHook final : public hooks::CommHook {
 public:
  explicit ClassHook(c10::IValue object) : object_(std::move(object)) {}

  std::string_view name() const override { return "class"; }

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    return hook_script()
        .run_method("average", object_, bucket.getBuffer(), static_cast<int64_t>(bucket.getIndex()), bucket.isLast(),
                    bucket.getParameters())
        .toFuture();
  }

 private:
  c10::IValue object_;
};

// Each parameter fills whole blocks of every wire format. So the hook by its name has the parameters in the order in
// which a custom hook has them (trainer/ddp/reducer/block_alignment.h).
torch::nn::Sequential make_module() {
  using torch::nn::Linear;
  using torch::nn::LinearOptions;
  const torch::nn::Sequential module(Linear(8, 256), torch::nn::Tanh(), Linear(LinearOptions(256, 8).bias(false)),
                                     Linear(8, 256), torch::nn::Tanh(), Linear(LinearOptions(256, 4).bias(false)));
  const at::NoGradGuard no_grad;
  for (const at::Tensor& parameter : module->parameters()) {
    const at::Tensor numbers = at::arange(parameter.numel(), at::kFloat) * static_cast<double>(parameter.numel());
    parameter.copy_(at::sin(numbers).view_as(parameter) * 0.3);
  }
  return module;
}

using Ddp = DistributedDataParallel<torch::nn::Sequential>;

// One step of SGD on data that only this rank has.
void take_step(Ddp& ddp, int64_t rank, int64_t step) {
  const at::Tensor x =
      at::cos(at::arange(16 * 8, at::kFloat) * static_cast<double>(1 + rank + 10 * step)).view({16, 8});
  ddp.zero_grad();
  ddp.backward(ddp.forward(x).square().mean() * (1 + rank));
  const at::NoGradGuard no_grad;
  for (const at::Tensor& parameter : ddp.module()->parameters()) parameter.sub_(parameter.grad(), 0.01);
}

struct GivenHook {
  std::string hook;
  GivenOptions given = {};
  HookOptions in_cpp = {};
};

bool averages_over_nodes(const std::string& hook) {
  try {
    hooks::check_hook_options(hook, {.wire = {.node_size = 1}});
    return true;
  } catch (const c10::ValueError&) {
    return false;
  }
}

// The hook with options that make it do its work within the steps. `node_size` 0: all ranks are one node.
GivenHook given_hook(const std::string& name, int64_t node_size) {
  GivenHook result{name};
  if (name == "auto") {
    result.given = {{"link_gbit", kSlowGbit}, {"link_us", int64_t{50}}, {"auto_bits", int64_t{8}}};
    result.in_cpp.wire = {.link_gbit = kSlowGbit, .link_us = 50, .auto_bits = 8};
    if (node_size == 0) {  // Within one node it would choose by measured times, which can differ between the two.
      result.given.emplace("levels", std::string("one"));
      result.in_cpp.wire.levels = hooks::Levels::kOne;
    }
  }
  if (hooks::power_sgd_rank_of(name)) {
    result.given.emplace("power_sgd_start", int64_t{2});
    result.in_cpp.power_sgd.start = 2;
  }
  if (node_size > 0 && averages_over_nodes(name)) {
    result.given.emplace("node_size", node_size);
    result.in_cpp.wire.node_size = node_size;
  }
  return result;
}

void expect_equal_training(const GivenHook& each, int64_t rank, const ProcessGroupPtr& group,
                           const std::string& group_name) {
  constexpr double kBucketMib = 0.005;  // Several buckets.
  Ddp by_name(make_module(), group, DdpOptions().hook(each.hook).hook_options(each.in_cpp).bucket_cap_mb(kBucketMib));
  Ddp by_class(make_module(), group, DdpOptions().bucket_cap_mb(kBucketMib));
  const c10::IValue object = make_hook(each.hook, each.given, group_name);
  by_class.register_comm_hook(std::make_unique<ClassHook>(object));
  const std::vector<at::Tensor> expected = by_name.module()->parameters();
  const std::vector<at::Tensor> actual = by_class.module()->parameters();
  const at::Tensor before = expected[0].detach().clone();
  for (int64_t step = 0; step < kTrainedSteps; ++step) {
    take_step(by_name, rank, step);
    take_step(by_class, rank, step);
    ASSERT_EQ(by_class.bucket_bytes(), by_name.bucket_bytes()) << each.hook;
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_TRUE(at::equal(actual[i].grad(), expected[i].grad()))
          << each.hook << ", gradient " << i << ", step " << step;
      ASSERT_TRUE(at::equal(actual[i], expected[i])) << each.hook << ", parameter " << i << ", step " << step;
    }
  }
  if (!by_name.hook_nodes().empty()) {
    EXPECT_EQ(hook_script().run_method("nodes", object).toStringRef(), by_name.hook_nodes()) << each.hook;
  }
  EXPECT_GT(by_name.bucket_bytes().size(), 1U);
  EXPECT_TRUE(expected[0].isfinite().all().item<bool>()) << each.hook;  // NaN equals nothing.
  EXPECT_FALSE(at::equal(expected[0], before)) << each.hook << ": nothing was trained";
}

struct Ranks {
  int64_t world_size;
  int64_t node_size;
};

class CommHookClassInDdp : public ::testing::TestWithParam<Ranks> {};

TEST_P(CommHookClassInDdp, TrainsWithTheBitsOfTheHookByName) {
  testing::run_ranks(GetParam().world_size, [](int64_t rank, const ProcessGroupPtr& group) {
    const RegisteredGroup registered(group);
    for (const std::string& name : hooks::comm_hook_names()) {
      if (name == "none") continue;
      expect_equal_training(given_hook(name, GetParam().node_size), rank, group, registered.name());
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, CommHookClassInDdp,
                         ::testing::Values(Ranks{2, 0}, Ranks{3, 0}, Ranks{2, 1}, Ranks{3, 1}, Ranks{4, 2}),
                         [](const auto& info) {
                           return "world" + std::to_string(info.param.world_size) + "_node" +
                                  std::to_string(info.param.node_size);
                         });

}  // namespace
}  // namespace narrowcast::classes
