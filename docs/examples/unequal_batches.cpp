// Ranks with unequal numbers of batches, which differ in size: gradients are the mean over all samples of a pass, and a
// rank without data takes part in the steps of the others.
//
//   narrowcast-run --standalone --nproc_per_node=2 ./unequal_batches
#include <narrowcast/narrowcast.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/utils/convert_parameters.h>
#include <torch/optim/sgd.h>

#include <cstdint>
#include <iostream>
#include <vector>

namespace {

// Batch number `batch` of a rank. The first rank has most batches, and the last one the largest.
at::Tensor inputs_of(int64_t rank, int64_t batch) {
  torch::manual_seed(1000 * rank + batch);
  return torch::randn({4 + 8 * rank, 1});
}

int64_t batches_of(int64_t rank, int64_t world_size) { return 100 + 50 * (world_size - 1 - rank); }

}  // namespace

int main() {
  const auto env = narrowcast::WorkerEnv::from_environment();
  const narrowcast::ProcessGroupScope scope(env);
  torch::manual_seed(0);
  torch::nn::Linear line(1, 1);
  narrowcast::DistributedDataParallel ddp(line, scope.group(), narrowcast::DdpOptions().hook("int8"));
  torch::optim::SGD sgd(line->parameters(), torch::optim::SGDOptions(0.1).momentum(0.5));

  narrowcast::Join join(ddp.reducer());
  const auto step = [&] {
    sgd.step();
    ddp.zero_grad();
  };
  for (int64_t batch = 0; batch < batches_of(env.rank, env.world_size); ++batch) {
    const at::Tensor x = inputs_of(env.rank, batch);
    const double weight = join.begin_pass(x.size(0));  // samples of this rank / samples of all ranks
    ddp.backward((ddp.forward(x) - (3 * x + 1)).square().mean(), weight);
    step();
  }
  const int64_t shadowed = join.finish(step);  // This rank has no data left.

  const at::Tensor flat = torch::nn::utils::parameters_to_vector(line->parameters()).detach().to(at::kDouble);
  const std::vector<double> own(flat.const_data_ptr<double>(), flat.const_data_ptr<double>() + flat.numel());
  const bool are_equal = narrowcast::all_reduce_max(scope.group(), own) == own;
  const double all_shadowed = narrowcast::all_reduce_sum(scope.group(), {static_cast<double>(shadowed)})[0];
  if (env.rank == 0) {
    std::cout << "y = " << own[0] << " x + " << own[1] << ", " << (are_equal ? "equal" : "NOT equal")
              << " on all ranks, " << all_shadowed << " passes without data\n";
  }
  return are_equal ? 0 : 1;
}
