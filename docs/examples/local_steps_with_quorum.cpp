// Local steps that do not wait for slow ranks: a round averages the ranks that are on time. A late rank is averaged in
// a later round.
//   narrowcast-run --standalone --nproc_per_node=2 ./local_steps_with_quorum
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <chrono>
#include <iostream>
#include <thread>
#include <utility>

#include <narrowcast/narrowcast.h>

int main() {
  const auto env = narrowcast::WorkerEnv::from_environment();
  const narrowcast::ProcessGroupScope scope(env);
  torch::manual_seed(0);  // All ranks begin with the same parameters.
  torch::nn::Linear model(1, 1);
  torch::optim::AdamW adamw(model->parameters(), /*lr=*/0.02);
  narrowcast::OuterOptimizer outer(adamw, scope.group(),
                                   narrowcast::OuterOptions().sync_every(20).quorum(1).grace_seconds(0.05));
  double sum = 0;     // of the losses since the last message
  double losses = 0;  // their number
  outer.set_notes([&] { return narrowcast::OuterOptimizer::Notes{std::exchange(sum, 0), std::exchange(losses, 0)}; });
  int64_t own_steps = 0;
  double last_loss = 0;
  while (outer.steps() < 600) {
    torch::manual_seed(1000 * outer.steps() + env.rank);  // The batch follows from the step, which may jump.
    const auto x = torch::randn({32, 1});
    const auto loss = (model->forward(x) - (3 * x + 1)).square().mean();
    outer.zero_grad();
    loss.backward();
    sum += loss.item<double>();
    ++losses;
    if (env.rank == 1 && own_steps == 200) std::this_thread::sleep_for(std::chrono::seconds(1));
    outer.step();  // May end several rounds on rank 1, which was late for them.
    ++own_steps;
    for (const auto& round : outer.take_rounds()) {  // The same rounds on all ranks.
      last_loss = round.notes.front()[0] / round.notes.front()[1];
    }
  }
  outer.finish();  // Waits for all ranks, and averages late ones.
  std::cout << "rank " << env.rank << ": y = " << model->weight.item<float>() << " x + " << model->bias.item<float>()
            << ", step " << outer.steps() << ", loss below 1: " << (last_loss < 1) << "\n";
}
