// State of quantized_allreduce from step to step, on GPU buckets over NCCL, compared with the same steps on the CPU.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include <narrowcast/hooks.h>
#include "tests/hooks/all/parameters_bucket.h"
#include "tests/hooks/all/run_hook.h"
#include "tests/ops/affine_uint8/reference.h"
#include "tests/support/nccl/nccl_ranks.h"

namespace narrowcast::hooks {
namespace {

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

constexpr const char* kHook = "int4";

// The link is given, so nothing is measured; the weight uses two shots with three or more ranks.
WireOptions with_link(WireOptions wire) {
  wire.link_gbit = 10;
  wire.link_us = 50;
  return wire;
}

std::vector<WireOptions> all_wire_options() {
  return {with_link({.exempt_one_dimensional = true, .node_size = 1}),
          with_link({.error_feedback = true, .node_size = 1}),
          with_link(
              {.stochastic_rounding_seed = 7, .error_feedback = true, .exempt_one_dimensional = true, .node_size = 1}),
          with_link({.error_feedback = true, .node_size = 2})};
}

// A weight, a bias and another weight, in one bucket or in two.
struct Side {
  explicit Side(const HookOptions& options, at::DeviceType device)
      : hook(create_comm_hook(kHook, options)),
        parameters({at::zeros({600, 500}, device), at::zeros({601}, device), at::zeros({70, 90}, device)}) {}

  // The means of a step, in the order of the parameters. From step 3 on the buckets are different, as after a rebuild
  // by the Reducer.
  std::vector<at::Tensor> step(int64_t rank, int64_t number) const {
    std::vector<std::vector<int>> buckets{{0, 1, 2}};
    if (number >= 3) buckets = {{2, 1}, {0}};
    std::vector<at::Tensor> means;
    for (size_t index = 0; index < buckets.size(); ++index) {
      std::vector<at::Tensor> in_bucket;
      std::vector<at::Tensor> gradients;
      for (const int parameter : buckets[index]) {
        in_bucket.push_back(parameters[parameter]);
        at::manual_seed(100 * number + 10 * parameter + rank);
        gradients.push_back(at::randn(parameters[parameter].sizes()).to(parameters[parameter].device()));
      }
      means.push_back(run_on(*hook, make_parameters_bucket(in_bucket, gradients, index, buckets.size())));
    }
    return means;
  }

  std::vector<NamedParameter> named() const {
    return {{"weight", parameters[0]}, {"bias", parameters[1]}, {"other", parameters[2]}};
  }

  HookState copied_state() const {
    HookState copy;
    for (const auto& [name, tensor] : hook->state(named())) copy.emplace(name, tensor.clone());
    return copy;
  }

  std::shared_ptr<CommHook> hook;
  std::vector<at::Tensor> parameters;
};

void expect_same(const std::vector<at::Tensor>& means, const std::vector<at::Tensor>& expected) {
  ASSERT_EQ(means.size(), expected.size());
  for (size_t i = 0; i < means.size(); ++i)
    EXPECT_TRUE(test::same_bits(means[i].cpu(), expected[i].cpu())) << "bucket " << i;
}

bool is_of_gradients(const std::string& name) {
  return name.find("residual.") != std::string::npos || name.starts_with("shared.");
}

// On a GPU, exempt elements are sent with the others, by their route. On the CPU they have a separate route, which may
// send more bytes.
void expect_bytes_sent(int64_t on_gpu, int64_t on_cpu, bool has_exempt) {
  if (has_exempt) {
    EXPECT_LE(on_gpu, on_cpu);
    EXPECT_GT(on_gpu, on_cpu / 2);
  } else {
    EXPECT_EQ(on_gpu, on_cpu);
  }
}

void expect_same_state(const HookState& state, const HookState& expected, bool has_exempt) {
  ASSERT_EQ(state.size(), expected.size());
  for (const auto& [name, tensor] : state) {
    if (name == "payload_bytes_sent") {
      expect_bytes_sent(tensor.item<int64_t>(), expected.at(name).item<int64_t>(), has_exempt);
    } else {
      EXPECT_TRUE(test::same_bits(tensor.cpu(), expected.at(name))) << name;
    }
    EXPECT_EQ(tensor.is_cuda(), is_of_gradients(name)) << name;
  }
}

void expect_steps_of_the_cpu(const WireOptions& wire, int64_t rank, const Group& group) {
  const HookOptions options{.process_group = group, .wire = wire};
  const Side on_cpu(options, at::kCPU);
  const Side on_gpu(options, at::kCUDA);
  for (int64_t step = 0; step < 6; ++step) {
    SCOPED_TRACE(::testing::Message() << "step " << step);
    expect_same(on_gpu.step(rank, step), on_cpu.step(rank, step));
    expect_same_state(on_gpu.copied_state(), on_cpu.copied_state(), wire.exempt_one_dimensional);
  }
  expect_bytes_sent(on_gpu.hook->payload_bytes_sent(), on_cpu.hook->payload_bytes_sent(), wire.exempt_one_dimensional);
  const Side resumed(options, at::kCUDA);
  resumed.hook->load_state({.world_size = group->getSize(), .states = {on_gpu.copied_state()}, .first = {}},
                           resumed.named());
  expect_same(resumed.step(rank, 6), on_cpu.step(rank, 6));
}

class CudaQuantizedAllReduceHook : public ::testing::TestWithParam<int64_t> {};

TEST_P(CudaQuantizedAllReduceHook, ExemptsAndFeedsBackAsOnTheCpu) {
  testing::run_nccl_ranks(GetParam(), [](int64_t rank, const Group& group) {
    for (const WireOptions& wire : all_wire_options()) {
      SCOPED_TRACE(::testing::Message() << "nodes of " << *wire.node_size << ", error feedback " << wire.error_feedback
                                        << ", exempt " << wire.exempt_one_dimensional);
      expect_steps_of_the_cpu(wire, rank, group);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, CudaQuantizedAllReduceHook, ::testing::Values(2, 3));

}  // namespace
}  // namespace narrowcast::hooks
