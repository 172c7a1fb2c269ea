// All ranks share the optimizer's work and memory. They send parameters as differences, instead of average gradients.
//   narrowcast-run --standalone --nproc_per_node=2 ./sharded_over_all_ranks
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <iostream>

#include <narrowcast/narrowcast.h>

int main() {
  const auto env = narrowcast::WorkerEnv::from_environment();
  const narrowcast::ProcessGroupScope scope(env);
  torch::manual_seed(0);  // Each run begins with the same parameters.
  torch::nn::Sequential model(torch::nn::Linear(1, 1024), torch::nn::Tanh(), torch::nn::Linear(1024, 1));
  narrowcast::DistributedDataParallel ddp(model, scope.group(), narrowcast::DdpOptions().hook("int8"));
  torch::optim::AdamW adamw(model->parameters(), /*lr=*/0.001);
  auto options = narrowcast::ShardOptions().parameter_format(narrowcast::WireFormat::kInt8B128);
  options.copies(env.on_one_node() ? 1 : 2);  // With two, a lost node costs no state.
  narrowcast::ShardedOptimizer optimizer(adamw, ddp.reducer(), options);
  torch::manual_seed(env.rank);  // Each rank has different data.
  at::Tensor loss;
  for (int64_t step = 0; step < 300; ++step) {
    const auto x = torch::rand({64, 1});
    loss = (ddp.forward(x) - torch::sin(3 * x)).square().mean();
    optimizer.zero_grad();
    ddp.backward(loss);                 // Averages this rank's shard of the gradients.
    optimizer.clip_gradient_norm(1.0);  // The norm is that of all shards.
    optimizer.step();                   // AdamW's step of this rank's shard. Then all ranks exchange differences.
    if (step == 150) {                  // All ranks change parameters themselves, and say so to the optimizer.
      const at::NoGradGuard no_grad;
      for (const at::Tensor& parameter : model->parameters()) parameter.clamp_(-2, 2);
      optimizer.take_parameters();
    }
  }
  int64_t gradients = 0;
  for (const at::Tensor& gradient : optimizer.own_gradients()) gradients += gradient.numel();
  const double norm = optimizer.gradient_norm();
  const bool has_masters = ddp.reducer().averages_shards() && optimizer.has_masters();
  const double difference = has_masters ? optimizer.largest_difference() : 0;
  if (env.rank == 0) {
    std::cout << "loss " << loss.item<float>() << ", rank 0 has the averages of " << gradients << " of "
              << optimizer.elements() << " gradients, whose norm is " << norm << "\n"
              << "no parameter is further than " << difference << " from its master\n";
  }
}
