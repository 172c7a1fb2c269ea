// A first program with narrowcast: two ranks fit a line, sending 8-bit gradients.
//   narrowcast-run --standalone --nproc_per_node=2 ./first_program
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <iostream>

#include <narrowcast/narrowcast.h>

int main() {
  const auto env = narrowcast::WorkerEnv::from_environment();
  const narrowcast::ProcessGroupScope scope(env);  // Closes the group when main ends, also after an exception.
  const auto& group = scope.group();

  torch::manual_seed(env.rank);  // Ranks start differently; DDP copies rank 0's parameters to all.
  narrowcast::DistributedDataParallel ddp(torch::nn::Linear(1, 1), group,
                                          narrowcast::DdpOptions().hook("quantize_per_channel"));
  torch::optim::SGD optimizer(ddp.module()->parameters(), /*lr=*/0.1);
  for (int64_t step = 0; step < 200; ++step) {
    const auto x = torch::randn({32, 1});  // Each rank sees different data.
    const auto loss = (ddp.forward(x) - (3 * x + 1)).square().mean();
    optimizer.zero_grad();
    ddp.backward(loss);  // Gradients are quantised, sent and averaged here.
    optimizer.step();
  }

  auto weight = ddp.module()->weight.detach().clone();
  std::vector<at::Tensor> sum = {weight.clone()};
  group->allreduce(sum)->wait();
  const bool equal = at::equal(sum[0], weight * env.world_size);
  if (env.rank == 0) {
    std::cout << "y = " << weight.item<float>() << " x + " << ddp.module()->bias.item<float>() << '\n'
              << (equal ? "all " : "NOT all ") << env.world_size << " ranks hold the same parameters\n";
  }
  return equal ? 0 : 1;
}
