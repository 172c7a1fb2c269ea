// Ranks of a node share the optimizer's work and memory: each holds the state of its shard of the parameters only. The
// parameters lie once in memory of the node.
//   narrowcast-run --standalone --nproc_per_node=2 ./sharded_optimizer [whole]
// With "whole", a rank steps whole parameters, as optimizers need it that are not elementwise.
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <iostream>

#include <narrowcast/narrowcast.h>

int main(int argc, char** /*argv*/) {
  const auto env = narrowcast::WorkerEnv::from_environment();
  const narrowcast::ProcessGroupScope scope(env);
  torch::manual_seed(0);  // Each run begins with the same parameters.
  torch::nn::Sequential model(torch::nn::Linear(1, 256), torch::nn::Tanh(), torch::nn::Linear(256, 1));
  narrowcast::DistributedDataParallel ddp(model, scope.group(), narrowcast::DdpOptions().hook("int8"));
  torch::optim::AdamW adamw(model->parameters(), /*lr=*/0.01);
  const auto options = narrowcast::ShardOptions().whole_parameters(argc > 1).share_parameters(true);
  narrowcast::ShardedOptimizer optimizer(adamw, scope.group(), options);
  torch::manual_seed(env.rank);  // Each rank has different data.
  at::Tensor loss;
  for (int64_t step = 0; step < 300; ++step) {
    const auto x = torch::rand({64, 1});
    loss = (ddp.forward(x) - torch::sin(3 * x)).square().mean();
    optimizer.zero_grad();
    ddp.backward(loss);
    optimizer.step();  // AdamW's step of this rank's shard. It waits for the ranks of the node.
  }
  if (env.rank == 0) {
    std::cout << "loss " << loss.item<float>() << ", " << optimizer.shards() << " shards, rank 0 steps "
              << optimizer.own_elements() << " of " << optimizer.elements() << " elements\n";
  }
}
