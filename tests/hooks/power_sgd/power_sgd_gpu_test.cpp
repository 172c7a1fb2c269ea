// PowerSGD of GPU buckets over NCCL, compared with the same steps of CPU buckets.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/hooks/power_sgd/power_sgd_run.h"
#include "tests/support/nccl/nccl_ranks.h"

namespace narrowcast::hooks {
namespace {

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

constexpr int64_t kPowerSgdNumel = 64 * 36 + 33;
constexpr int64_t kSteps = 4;

std::vector<PowerSgdRun> gpu_runs(int64_t node_size) {
  const auto run = [&](const char* hook, const PowerSgdOptions& options) {
    return PowerSgdRun{.hook = hook,
                       .options = options,
                       .shapes = {{64, 36}, {33}},
                       .steps = kSteps,
                       .wire = {.node_size = node_size}};
  };
  return {run("power_sgd", {.start = 0}),
          run("power_sgd", {.rank = 4, .start = 1}),
          run("power_sgd_rank2", {.start = 0, .warm_start = false}),
          run("power_sgd_rank2", {.start = 0, .alternate = true}),
          run("power_sgd_rank2", {.start = 0, .memory = PowerSgdMemory::kAveraged}),
          run("power_sgd_rank2", {.start = 0, .wire = WireFormat::kBf16}),
          run("batched_power_sgd_rank2", {.start = 0})};
}

void expect_same_means(const PowerSgdRun& run, int64_t rank, const Group& group) {
  const HookOptions options{.process_group = group, .wire = run.wire, .power_sgd = run.options};
  const auto on_cpu = create_comm_hook(run.hook, options);
  const auto on_gpu = create_comm_hook(run.hook, options);
  const std::vector<at::Tensor> cpu_parameters = parameters_of(run, at::kFloat);
  std::vector<at::Tensor> gpu_parameters;
  for (const at::Tensor& parameter : cpu_parameters) gpu_parameters.push_back(parameter.cuda());
  const auto gradients = random_gradients(kPowerSgdNumel, at::kFloat);
  for (int64_t step = 0; step < kSteps; ++step) {
    const at::Tensor gradient = gradients(rank, step);
    const at::Tensor expected = average_step(*on_cpu, cpu_parameters, gradient);
    const at::Tensor mean = average_step(*on_gpu, gpu_parameters, gradient.cuda());
    ASSERT_TRUE(mean.is_cuda());
    // If the two differ in one bit, bfloat16 may round a number in the other direction.
    const double tolerance = run.options.wire == WireFormat::kBf16 ? 2e-2 : 1e-3;
    EXPECT_LE(l2_norm(mean.cpu() - expected), tolerance * l2_norm(expected)) << run.hook << " step " << step;
    std::vector<at::Tensor> of_rank_0{mean.clone()};
    group->broadcast(of_rank_0)->wait();
    EXPECT_TRUE(at::equal(of_rank_0[0], mean)) << "replicas differ";
  }
  at::Tensor bad = gradients(rank, 0);
  if (rank == 0) bad[7].fill_(std::numeric_limits<float>::quiet_NaN());
  EXPECT_TRUE(average_step(*on_gpu, gpu_parameters, bad.cuda()).isnan().all().item<bool>());
  EXPECT_TRUE(average_step(*on_gpu, gpu_parameters, gradients(rank, 1).cuda()).isfinite().all().item<bool>());
  const HookState state = on_gpu->state(named(gpu_parameters));
  EXPECT_TRUE(state.at("residual.0").is_cuda());
}

void check_on(int64_t world_size, int64_t node_size) {
  testing::run_nccl_ranks(world_size, [&](int64_t rank, const Group& group) {
    for (const PowerSgdRun& run : gpu_runs(node_size)) expect_same_means(run, rank, group);
  });
}

TEST(CudaPowerSgd, GivesTheMeansOfTheCpu) { check_on(2, 1); }
TEST(CudaPowerSgdOverNodes, GivesTheMeansOfTheCpu) { check_on(4, 2); }

}  // namespace
}  // namespace narrowcast::hooks
