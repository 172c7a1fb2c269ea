// Communication hooks under DistributedDataParallel.
#include <ATen/core/ivalue.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include <narrowcast/ddp.h>
#include <narrowcast/hooks.h>
#include "tests/support/in_turn.h"
#include "tests/support/ranks.h"
#include "tests/trainer/ddp/all/ddp_fixtures.h"

namespace narrowcast {
namespace {

using namespace testing;
using ::testing::ElementsAre;
using ::testing::SizeIs;

// Leaves the gradients unchanged and records its arguments.
class RecordingHook : public hooks::CommHook {
 public:
  struct Record {
    std::vector<bool> is_last;
    std::vector<bool> input_layer_has_gradient;
  };

  RecordingHook(Record& record, at::Tensor input_weight) : record_(record), input_weight_(std::move(input_weight)) {}

  std::string_view name() const override { return "recording"; }

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    record_.is_last.push_back(bucket.isLast());
    record_.input_layer_has_gradient.push_back(input_weight_.grad().defined());
    count_payload(static_cast<int64_t>(bucket.getBuffer().nbytes()));
    auto future = c10::make_intrusive<c10::ivalue::Future>(c10::TensorType::get());
    future->markCompleted(bucket.getBuffer());
    return future;
  }

 private:
  Record& record_;
  const at::Tensor input_weight_;
};

// PyTorch's test_is_last_hook: eleven layers without bias (smaller here, with caps to match).
TEST(DdpHooksTest, IsLastHoldsForTheFinalBucketOnly) {
  run_ranks(2, [](int64_t /*rank*/, const ProcessGroupPtr& group) {
    torch::nn::Sequential net;
    for (int64_t layer = 0; layer < 11; ++layer) {
      net->push_back(torch::nn::Linear(torch::nn::LinearOptions(layer == 0 ? 2 : 40, 40).bias(false)));
    }
    const at::Tensor input_weight = net->parameters()[0];
    DistributedDataParallel ddp(net, group, DdpOptions().bucket_cap_mb(0.005));
    RecordingHook::Record record;
    ddp.register_comm_hook(std::make_unique<RecordingHook>(record, input_weight));
    EXPECT_EQ(ddp.hook_name(), "recording");
    for (int64_t step = 0; step < 3; ++step) {
      record = {};
      ddp.zero_grad();
      ddp.backward(ddp.forward(seeded_randn(1, {10, 2})).sum());
      ASSERT_THAT(record.is_last, SizeIs(step == 0 ? 1 : 11));
      EXPECT_TRUE(record.is_last.back());
      EXPECT_EQ(std::count(record.is_last.begin(), record.is_last.end(), true), 1);
    }
    // Overlap: the first buckets were sent before the backward pass reached the input layer.
    EXPECT_FALSE(record.input_layer_has_gradient.front());
    EXPECT_TRUE(record.input_layer_has_gradient.back());
    EXPECT_EQ(ddp.payload_bytes_sent(), 3 * 4 * (2 * 40 + 10 * 40 * 40));
  });
}

TEST(DdpHooksTest, SaysOverWhichNodesItAverages) {
  run_ranks(2, [](int64_t /*rank*/, const ProcessGroupPtr& group) {
    const auto nodes = [&](const DdpOptions& options) {
      return DistributedDataParallel(SmallNet(), group, options).hook_nodes();
    };
    const hooks::WireOptions flat{.node_size = 1, .link_gbit = 10, .link_us = 50};
    EXPECT_EQ(nodes(DdpOptions().hook("int8")), "1 x 2");
    EXPECT_EQ(nodes(DdpOptions().hook("int8").wire(flat)), "2 x 1");
    EXPECT_EQ(nodes(DdpOptions().hook("auto").wire(flat)), "2 x 1");
    EXPECT_EQ(nodes(DdpOptions().hook("power_sgd")), "1 x 2");
    EXPECT_EQ(nodes(DdpOptions().hook("quantize_per_tensor")), "") << "it knows of none";
    EXPECT_EQ(nodes(DdpOptions()), "");
  });
}

TEST(DdpHooksTest, OnlyOneHookCanBeRegistered) {
  run_ranks(1, [](int64_t /*rank*/, const ProcessGroupPtr& group) {
    DistributedDataParallel ddp(SmallNet(), group, DdpOptions().hook("allreduce"));
    RecordingHook::Record record;
    EXPECT_THROW(ddp.register_comm_hook(std::make_unique<RecordingHook>(record, at::Tensor())), c10::Error);
    EXPECT_EQ(ddp.hook_name(), "allreduce");
  });
}

// Same bits as the hook that itself casts, with rebuilt buckets and in every mode.
TEST(DdpHooksTest, TakesAHookThatIsWrappedInAFormat) {
  for (const DdpOptions& mode :
       {DdpOptions(), DdpOptions().gradient_as_bucket_view(true), DdpOptions().static_graph(true)}) {
    run_ranks(2, [&](int64_t rank, const ProcessGroupPtr& group) {
      const auto trained_by = [&](DistributedDataParallel<SmallNet>& ddp) {
        const std::vector<at::Tensor> parameters = ddp.module()->parameters();
        {
          const at::NoGradGuard no_grad;
          for (size_t i = 0; i < parameters.size(); ++i) {
            parameters[i].copy_(seeded_randn(i, parameters[i].sizes()));
          }
        }
        for (int64_t step = 0; step < 5; ++step) {
          const Sample sample = sample_of(step, rank);
          ddp.zero_grad();
          ddp.backward(loss_of(ddp.forward(sample.x), sample));
          descend(parameters, 0.05);
        }
        EXPECT_TRUE(same_on_all_ranks(group, parameters));
        return bytes_of(parameters);
      };
      DistributedDataParallel compressing(SmallNet(), group,
                                          DdpOptions(mode).hook("bf16_compress").bucket_cap_mb(0.0005));
      DistributedDataParallel wrapped(SmallNet(), group, DdpOptions(mode).bucket_cap_mb(0.0005));
      wrapped.register_comm_hook(
          hooks::wrap_in_format(hooks::create_comm_hook("allreduce", {.process_group = group}), "bf16"));
      EXPECT_EQ(wrapped.hook_name(), "bf16(allreduce)");
      EXPECT_EQ(trained_by(wrapped), trained_by(compressing));
      EXPECT_EQ(wrapped.payload_bytes_sent(), compressing.payload_bytes_sent());
    });
  }
}

class DdpEveryHookTest : public ::testing::TestWithParam<std::tuple<std::string, int64_t>> {};

TEST_P(DdpEveryHookTest, ReplicasAreTheSameBitsAfterFiftySteps) {
  const auto& [hook, world_size] = GetParam();
  run_ranks(world_size, [&hook = hook](int64_t rank, const ProcessGroupPtr& group) {
    hooks::WireOptions wire;
    if (hooks::takes_wire_options(hook)) wire.node_size = 1;  // On one machine nothing would be sent.
    DistributedDataParallel ddp(SmallNet(), group, DdpOptions().hook(hook).wire(wire).bucket_cap_mb(0.0005));
    const std::vector<at::Tensor> parameters = ddp.module()->parameters();
    const std::string before = bytes_of(parameters);
    for (int64_t step = 0; step < 50; ++step) {
      const Sample sample = sample_of(step, rank);
      ddp.zero_grad();
      ddp.backward(loss_of(ddp.forward(sample.x), sample));
      descend(parameters, 0.05);
    }
    EXPECT_EQ(ddp.hook_name(), hook);
    EXPECT_FALSE(bytes_of(parameters) == before);
    // noop leaves every rank its local gradient; all other hooks must keep replicas together.
    const bool keeps_together = hook != "noop" || group->getSize() == 1;
    EXPECT_EQ(same_on_all_ranks(group, parameters), keeps_together);
    const bool sends = hook != "noop" && group->getSize() > 1;
    EXPECT_EQ(ddp.payload_bytes_sent() > 0, sends) << ddp.payload_bytes_sent();
  });
}

INSTANTIATE_TEST_SUITE_P(
    Hooks, DdpEveryHookTest,
    ::testing::ValuesIn(test::in_turn(hooks::comm_hook_names(), std::vector<int64_t>{3, 2, 4, 1}, 2)),
    [](const auto& info) { return std::get<0>(info.param) + "_world_" + std::to_string(std::get<1>(info.param)); });

// PowerSGD through the Reducer. Buckets are rebuilt after the first step, backward passes without an exchange come
// between others, and parameters may be unused, by detection or by a static graph.
class DdpPowerSgdTest : public ::testing::TestWithParam<std::string> {};

TEST_P(DdpPowerSgdTest, KeepsReplicasTogetherAndLearns) {
  const std::vector<DdpOptions> modes{DdpOptions(), DdpOptions().find_unused_parameters(true),
                                      DdpOptions().static_graph(true), DdpOptions().gradient_as_bucket_view(true)};
  for (const DdpOptions& mode : modes) {
    for (const int64_t start : {0, 1}) {
      run_ranks(2, [&](int64_t rank, const ProcessGroupPtr& group) {
        DistributedDataParallel ddp(
            SmallNet(), group,
            DdpOptions(mode).hook(GetParam()).power_sgd({.rank = 1, .start = start}).bucket_cap_mb(0.0005));
        std::vector<double> losses;
        for (int64_t step = 0; step < 30; ++step) {
          const Sample sample = sample_of(0, rank);
          ddp.zero_grad();
          if (!mode.static_graph() && step % 3 == 1) {
            const auto unsynchronised = ddp.no_sync();
            ddp.backward(loss_of(ddp.forward(sample.x), sample));
          }
          const at::Tensor loss = loss_of(ddp.forward(sample.x), sample);
          losses.push_back(loss.item<double>());
          ddp.backward(loss);
          descend(ddp.module()->parameters(), 0.02);
        }
        EXPECT_TRUE(same_on_all_ranks(group, ddp.module()->parameters()));
        EXPECT_LT(losses.back(), losses.front());
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Hooks, DdpPowerSgdTest, ::testing::Values("power_sgd", "batched_power_sgd"));

// The task of PyTorch's test of hooks: the gradient of mean(p * x^(1 + rank)) is x^(1 + rank) / 800.
struct HookTaskImpl : torch::nn::Module {
  HookTaskImpl() { p = register_parameter("p", seeded_randn(0, {40, 20})); }
  at::Tensor forward(const at::Tensor& x, int64_t rank) { return p * x.pow(1 + rank); }
  at::Tensor p;
};

struct Qparams {
  float scale;
  float zero_point;
};

// PyTorch's MinMaxObserver, quantisation and dequantisation, one step at a time.
Qparams qparams_of(const at::Tensor& x) {
  const float low = std::min(x.min().item<float>(), 0.0f);
  const float high = std::max(x.max().item<float>(), 0.0f);
  const float scale = std::max((high - low) / 255.0f, 0x1p-23f);
  return {scale, std::clamp(0.0f - std::nearbyint(low / scale), 0.0f, 255.0f)};
}

at::Tensor round_trip(const at::Tensor& x, Qparams qparams) {
  const at::Tensor codes = ((x / qparams.scale).round() + qparams.zero_point).clamp(0, 255);
  return (codes - qparams.zero_point) * qparams.scale;
}

at::Tensor task_gradient(const std::string& hook, int64_t rank, const ProcessGroupPtr& group) {
  DistributedDataParallel ddp(std::make_shared<HookTaskImpl>(), group, DdpOptions().hook(hook));
  ddp.backward(ddp.forward(seeded_randn(2020, {40, 20}), rank).mean());
  return ddp.module()->p.grad();
}

at::Tensor local_task_gradient(int64_t rank) { return seeded_randn(2020, {40, 20}).pow(1 + rank) * 0.00125f; }

TEST(DdpKnownCaseTest, NoopGivesTheGradientsOfTheReferenceTask) {
  run_ranks(2, [](int64_t rank, const ProcessGroupPtr& group) {
    EXPECT_TRUE(at::equal(task_gradient("noop", rank, group), local_task_gradient(rank)));
  });
}

TEST(DdpKnownCaseTest, NoneAndAllreduceGiveTheirMean) {
  for (const std::string hook : {"none", "allreduce"}) {
    run_ranks(2, [&](int64_t rank, const ProcessGroupPtr& group) {
      const at::Tensor mean = local_task_gradient(0) / 2 + local_task_gradient(1) / 2;  // Halves are exact.
      EXPECT_TRUE(at::equal(task_gradient(hook, rank, group), mean)) << hook;
    });
  }
}

TEST(DdpKnownCaseTest, QuantizePerTensorGivesTheReferencesBits) {
  const Qparams first = qparams_of(local_task_gradient(0));
  const Qparams second = qparams_of(local_task_gradient(1));
  EXPECT_EQ(first.scale, 0x1.103b08p-15f);
  EXPECT_EQ(first.zero_point, 129.0f);
  EXPECT_EQ(second.scale, 0x1.cc103p-15f);
  EXPECT_EQ(second.zero_point, 0.0f);
  const at::Tensor expected =
      (round_trip(local_task_gradient(0), first) + round_trip(local_task_gradient(1), second)) / 2;
  run_ranks(2, [&](int64_t rank, const ProcessGroupPtr& group) {
    const at::Tensor actual = task_gradient("quantize_per_tensor", rank, group);
    EXPECT_TRUE(at::equal(actual, expected)) << (actual - expected).abs().max();
  });
}

}  // namespace
}  // namespace narrowcast
