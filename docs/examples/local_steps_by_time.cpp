// Local steps for machines of different speeds: each rank takes the steps that it can in half a second, and the mean of
// their parameters is weighted by steps. The clock is simulated here, so that the numbers are always the same.
//   narrowcast-run --standalone --nproc_per_node=2 ./local_steps_by_time
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <iostream>

#include <narrowcast/narrowcast.h>

int main() {
  const auto env = narrowcast::WorkerEnv::from_environment();
  const narrowcast::ProcessGroupScope scope(env);
  torch::manual_seed(0);  // All ranks begin with the same parameters.
  torch::nn::Linear model(1, 1);
  torch::optim::AdamW adamw(model->parameters(), /*lr=*/0.02);
  double seconds = 0;  // Without clock(), it is the time of the machine.
  narrowcast::OuterOptimizer outer(adamw, scope.group(),
                                   narrowcast::OuterOptions().sync_seconds(0.5).clock([&] { return seconds; }));
  outer.hold_round();  // With a DistributedDataParallel over the same ranks, for its first two steps.
  int64_t own_steps = 0;
  while (outer.steps() < 600) {
    torch::manual_seed(1000 * outer.steps() + env.rank);  // The batch follows from the step, which may jump.
    const auto x = torch::randn({32, 1});
    const auto loss = (model->forward(x) - (3 * x + 1)).square().mean();
    outer.zero_grad();
    loss.backward();
    seconds += env.rank == 0 ? 0.03125 : 0.125;  // Rank 0 is four times as fast.
    if (own_steps == 1) outer.release_round();   // There, after ddp.settle_buckets().
    outer.step();                                // Ends a round after half a second: 16 steps of rank 0.
    ++own_steps;
    if (outer.steps_are_common() && outer.last_round() && outer.steps() % 160 == 0) {
      // All ranks are here, and might save a checkpoint together.
      outer.restart_clock();  // The time for that does not count.
    }
  }
  outer.end_round();  // Waits for ranks that are slower. outer.finish() would do that, too.
  outer.finish();     // All ranks get the outer parameters.
  std::cout << "rank " << env.rank << ": y = " << model->weight.item<float>() << " x + " << model->bias.item<float>()
            << ", step " << outer.steps() << " after " << own_steps << " own steps\n";
}
