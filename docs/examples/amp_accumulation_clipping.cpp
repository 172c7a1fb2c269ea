// A training with mixed precision, gradient accumulation, clipping, batch norm and unequal amounts of data.
//
//   narrowcast-run --standalone --nproc_per_node=2 ./amp_accumulation_clipping
#include <ATen/autocast_mode.h>
#include <narrowcast/narrowcast.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/nn/utils/convert_parameters.h>
#include <torch/optim/adamw.h>

#include <cstdint>
#include <iostream>
#include <utility>
#include <vector>

namespace {

constexpr int64_t kBatch = 8;         // samples of a backward pass
constexpr int64_t kAccumulation = 4;  // backward passes of an optimizer step; the last one averages the gradients
constexpr double kMaxNorm = 1;        // of the averaged gradients

using Network = torch::nn::Sequential;

struct Training {
  Network network;
  narrowcast::DistributedDataParallel<Network> ddp;
  torch::optim::AdamW optimizer;
  narrowcast::GradScaler scaler;

  Training(Network net, const narrowcast::ProcessGroupPtr& group)
      : network(std::move(net)),
        ddp(network, group,
            narrowcast::DdpOptions().hook("int8").wire(
                {.error_feedback = true,
                 .node_size = 1})),  // Each rank counts as a node; within a node nothing would be rounded.
        optimizer(network->parameters(), torch::optim::AdamWOptions(1e-2)),
        scaler(at::kCPU, {.growth_interval = 20}) {}
};

struct Data {
  at::Tensor inputs;   // [samples, 8]
  at::Tensor targets;  // [samples, 1]
};

// Ranks have unequal numbers of samples.
Data data_of(int64_t rank) {
  torch::manual_seed(rank);
  const at::Tensor inputs = torch::randn({6400 + 100 * rank, 8});
  return {inputs, inputs.mean(1, /*keepdim=*/true).sin()};
}

// A collective. All ranks take the same number of steps: a rank with more data leaves its last samples out.
int64_t step_count(const narrowcast::ProcessGroupPtr& group, const Data& data) {
  const int64_t own = data.inputs.size(0) / (kBatch * kAccumulation);
  return -static_cast<int64_t>(narrowcast::all_reduce_max(group, {-static_cast<double>(own)})[0]);
}

// Matrix products are in float16 from here to the end of the scope.
class Float16Scope {
 public:
  Float16Scope() {
    at::autocast::set_autocast_dtype(at::kCPU, at::kHalf);
    at::autocast::set_autocast_enabled(at::kCPU, true);
  }
  ~Float16Scope() {
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
  }
  Float16Scope(const Float16Scope&) = delete;
  Float16Scope& operator=(const Float16Scope&) = delete;
};

// The scaled loss of backward pass number `pass`, divided by the passes of a step, so that their sum is a mean.
at::Tensor scaled_loss(Training& training, const Data& data, int64_t pass) {
  const at::Tensor inputs = data.inputs.narrow(0, pass * kBatch, kBatch);
  const at::Tensor targets = data.targets.narrow(0, pass * kBatch, kBatch);
  const Float16Scope float16;
  const at::Tensor loss = (training.ddp.forward(inputs).to(at::kFloat) - targets).square().mean();
  return training.scaler.scale(loss / kAccumulation);
}

// Returns whether the step was taken. It is skipped, on all ranks, if a gradient is not finite.
bool take_step(Training& training, const Data& data, int64_t step) {
  const int64_t first = step * kAccumulation;
  training.ddp.zero_grad();
  for (int64_t pass = first; pass + 1 < first + kAccumulation; ++pass) {
    const narrowcast::NoSyncGuard no_sync = training.ddp.no_sync();  // Forward and backward pass send nothing.
    training.ddp.backward(scaled_loss(training, data, pass));
  }
  training.ddp.backward(scaled_loss(training, data, first + kAccumulation - 1));  // Averages the sum of all passes.

  const std::vector<at::Tensor> parameters = training.network->parameters();
  const bool is_finite = training.scaler.unscale(parameters);
  if (training.scaler.change() != 1) {
    training.ddp.rescale_hook_state(training.scaler.change());  // The hook's residuals belong to scaled gradients.
  }
  if (is_finite) {
    torch::nn::utils::clip_grad_norm_(parameters, kMaxNorm);
    training.optimizer.step();
  }
  return is_finite;
}

// A collective. Whether this rank's parameters are the maximum over all ranks. It is true on all ranks only if the
// parameters are equal.
bool has_greatest_parameters(const narrowcast::ProcessGroupPtr& group, const Network& network) {
  const at::Tensor flat = torch::nn::utils::parameters_to_vector(network->parameters()).detach().to(at::kDouble);
  const std::vector<double> own(flat.const_data_ptr<double>(), flat.const_data_ptr<double>() + flat.numel());
  return narrowcast::all_reduce_max(group, own) == own;
}

}  // namespace

int main() {
  const auto env = narrowcast::WorkerEnv::from_environment();
  const narrowcast::ProcessGroupScope scope(env);
  const Data data = data_of(env.rank);
  Training training(
      Network(torch::nn::Linear(8, 64), torch::nn::BatchNorm1d(64), torch::nn::Tanh(), torch::nn::Linear(64, 1)),
      scope.group());
  const int64_t steps = step_count(scope.group(), data);
  int64_t skipped = 0;
  for (int64_t step = 0; step < steps; ++step) {
    skipped += take_step(training, data, step) ? 0 : 1;
  }

  const bool are_equal = has_greatest_parameters(scope.group(), training.network);
  training.network->eval();  // Batch norm uses its running averages: on all ranks rank 0's.
  const torch::NoGradGuard no_grad;
  const Data held_out = data_of(/*rank=*/1000);
  const at::Tensor loss = (training.network->forward(held_out.inputs) - held_out.targets).square().mean();
  if (env.rank == 0) {
    std::cout << steps << " steps, " << skipped << " skipped, scale " << training.scaler.get_scale() << ", loss "
              << loss.item<float>() << '\n';
  }
  return are_equal ? 0 : 1;
}
