// Training that goes on when a rank is killed: a new process takes its place, and gets the state of the others.
//
//   narrowcast-run --standalone --nproc_per_node=3 --recovery=in_place --max_restarts=3 ./elastic 60
//
// With a number, the first process of rank 1 kills itself before that step. The result has the same bits without it.
#include <ATen/CPUGeneratorImpl.h>
#include <narrowcast/narrowcast.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <csignal>
#include <cstdint>
#include <iostream>
#include <string>

int main(int argc, char** argv) {
  const int64_t kill_at = argc > 1 ? std::stoll(argv[1]) : -1;
  const auto env = narrowcast::WorkerEnv::from_environment();
  torch::manual_seed(0);
  torch::nn::Linear model(8, 1);
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(0.02));
  narrowcast::ElasticState state;
  state.add("model", *model);
  state.add("optimizer", optimizer);

  narrowcast::ElasticGroup elastic(env, {.on_recovery = [](const narrowcast::ElasticRecovery& recovery) {
                                     std::cout << "goes on with step " << recovery.step << std::endl;
                                   }});
  int64_t rank = env.rank;
  elastic.run(
      state,
      [&](const narrowcast::ProcessGroupPtr& group) {
        rank = group->getRank();  // Another one, if a node was lost.
        return narrowcast::DistributedDataParallel(model, group, narrowcast::DdpOptions().hook("bf16_compress"));
      },
      [&](auto& ddp, int64_t step) {
        if (step == kill_at && rank == 1 && env.restart_count == 0) {
          std::raise(SIGKILL);
        }
        const auto& group = ddp.process_group();  // Another group after a loss.
        auto generator =
            at::detail::createCPUGenerator(static_cast<uint64_t>(step * group->getSize() + group->getRank()));
        const auto inputs = torch::randn({16, 8}, generator);  // The data follow from step and rank.
        const auto loss = (ddp.forward(inputs) - inputs.sum(1, /*keepdim=*/true)).square().mean();
        optimizer.zero_grad();
        ddp.backward(loss);
        optimizer.step();
        return step + 1 < 200;
      });
  if (rank == 0) {
    std::cout << "sum of the weights " << model->weight.sum().item<float>() << ", recoveries " << elastic.recoveries()
              << std::endl;
  }
}
