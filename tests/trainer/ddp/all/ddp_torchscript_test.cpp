// TorchScript modules under DistributedDataParallel, compiled here from source.
#include <gtest/gtest.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/runtime/graph_executor.h>

#include <string>
#include <vector>

#include <narrowcast/ddp.h>
#include "tests/support/ranks.h"
#include "tests/trainer/ddp/all/ddp_fixtures.h"

namespace narrowcast {
namespace {

using namespace testing;

constexpr const char* kForward = R"(
def forward(self, x: Tensor) -> Dict[str, Tensor]:
    hidden = torch.tanh(torch.matmul(x, self.first))
    return {"y": torch.matmul(hidden, self.second), "aside": torch.matmul(hidden, self.aside)}
)";

torch::jit::Module make_script(int64_t rank) {
  torch::jit::Module script("Script");
  const auto add = [&](const std::string& name, at::IntArrayRef sizes) {
    const at::Tensor weight = seeded_randn(static_cast<uint64_t>(rank), sizes).requires_grad_(true);
    script.register_parameter(name, weight, /*is_buffer=*/false);
  };
  add("first", {8, 16});
  add("second", {16, 4});
  add("aside", {16, 3});
  script.define(kForward);
  return script;
}

std::vector<at::Tensor> parameters_of(const torch::jit::Module& script) {
  std::vector<at::Tensor> parameters;
  for (const at::Tensor& parameter : script.parameters()) parameters.push_back(parameter);
  return parameters;
}

at::Tensor entry(const c10::IValue& output, const std::string& key) {
  return output.toGenericDict().at(key).toTensor();
}

// Loss of both outputs, or of "y" alone.
at::Tensor script_loss(const c10::IValue& output, const Sample& sample, bool with_aside) {
  const at::Tensor loss = loss_of(entry(output, "y"), sample);
  return with_aside ? loss + entry(output, "aside").square().mean() : loss;
}

struct ScriptCase {
  std::string name;
  DdpOptions options;
  bool with_aside;
};

class DdpTorchScriptTest : public ::testing::TestWithParam<ScriptCase> {
 protected:
  // Optimised graphs may add in another order from one call to the next; this test compares bits.
  void SetUp() override { torch::jit::setGraphExecutorOptimize(false); }
  void TearDown() override { torch::jit::setGraphExecutorOptimize(true); }
};

TEST_P(DdpTorchScriptTest, AveragesGradientsExactly) {
  run_ranks(2, [&c = GetParam()](int64_t rank, const ProcessGroupPtr& group) {
    DistributedDataParallel ddp(make_script(rank), group, c.options);
    const std::vector<at::Tensor> parameters = parameters_of(ddp.module());
    EXPECT_TRUE(same_on_all_ranks(group, parameters));
    // The first two calls of a function are profiled and may add gradients in another order.
    for (int64_t call = 0; call < 2; ++call) ddp.module().forward({sample_of(0, rank).x});
    for (int64_t step = 0; step < 4; ++step) {
      const auto local = [&](int64_t of_rank) {
        const Sample sample = sample_of(step, of_rank);
        return gradients_of(script_loss(ddp.module().forward({sample.x}), sample, c.with_aside), parameters);
      };
      const auto of_rank_0 = local(0);
      const auto of_rank_1 = local(1);
      const Sample sample = sample_of(step, rank);
      ddp.zero_grad();
      ddp.backward(script_loss(ddp.forward(sample.x), sample, c.with_aside));
      for (size_t i = 0; i < parameters.size(); ++i) {
        EXPECT_TRUE(is_mean_over_ranks(parameters[i].grad(), {of_rank_0[i], of_rank_1[i]}))
            << "step " << step << ", parameter " << i;
      }
      descend(parameters, 0.1);
    }
    EXPECT_TRUE(same_on_all_ranks(group, parameters));
  });
}

INSTANTIATE_TEST_SUITE_P(Modes, DdpTorchScriptTest,
                         ::testing::Values(ScriptCase{"defaults", DdpOptions(), true},
                                           ScriptCase{"many_buckets", DdpOptions().bucket_cap_mb(kTinyMb), true},
                                           ScriptCase{"bucket_view", DdpOptions().gradient_as_bucket_view(true), true},
                                           ScriptCase{"unused", DdpOptions().find_unused_parameters(true), false},
                                           ScriptCase{"static_graph", DdpOptions().static_graph(true), false}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace narrowcast
