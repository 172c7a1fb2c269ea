// DiLoCo: ranks fit a line with local steps, and average parameters every 20 steps, sent as 4-bit numbers.
//   narrowcast-run --standalone --nproc_per_node=2 ./local_steps
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <iostream>

#include <narrowcast/narrowcast.h>

int main() {
  const auto env = narrowcast::WorkerEnv::from_environment();
  const narrowcast::ProcessGroupScope scope(env);
  torch::manual_seed(0);  // All ranks begin with the same parameters.
  torch::nn::Linear model(1, 1);
  torch::manual_seed(env.rank);  // Each rank has different data.
  torch::optim::AdamW adamw(model->parameters(), /*lr=*/0.02);
  narrowcast::OuterOptimizer outer(adamw, scope.group(),
                                   narrowcast::OuterOptions()
                                       .sync_every(20)
                                       .optimizer(narrowcast::OuterKind::kNesterov)
                                       .wire({.format = narrowcast::WireFormat::kInt4B32,
                                              .error_feedback = true,
                                              .node_size = 1}));  // Each rank counts as a node; else nothing is sent.
  for (int64_t step = 0; step < 600; ++step) {
    const auto x = torch::randn({32, 1});
    const auto loss = (model->forward(x) - (3 * x + 1)).square().mean();
    outer.zero_grad();
    loss.backward();  // Nothing is sent here.
    outer.step();     // AdamW's step. Every 20th also averages parameters and takes the outer step.
  }
  outer.finish();  // All ranks get the outer parameters.
  if (env.rank == 0) {
    std::cout << "y = " << model->weight.item<float>() << " x + " << model->bias.item<float>() << " after "
              << outer.exchanges() << " exchanges, " << outer.payload_bytes_sent() << " bytes sent\n";
  }
}
