// Local steps that resume in the middle of a round: the ranks have different parameters then, and an exchange is under
// way. The resumed training has the same bits as the first one.
//
//   narrowcast-run --standalone --nproc_per_node=2 ./resume_local_steps
//
// A program keeps `Checkpoint` in files: `replica` once, the rest for each rank. resume.cpp shows how to write them.
#include <narrowcast/narrowcast.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/utils/convert_parameters.h>
#include <torch/optim/adamw.h>
#include <torch/serialize.h>

#include <cstdint>
#include <iostream>
#include <sstream>
#include <string>
#include <utility>

namespace {

struct Training {
  narrowcast::ProcessGroupPtr group;
  torch::nn::Linear model;
  torch::optim::AdamW adamw;
  narrowcast::OuterOptimizer outer;

  Training(narrowcast::ProcessGroupPtr ranks, const torch::nn::Linear& net)
      : group(std::move(ranks)),
        model(net),
        adamw(model->parameters(), /*lr=*/0.01),
        outer(adamw, group,
              narrowcast::OuterOptions()
                  .sync_every(20)
                  .overlap_steps(4)
                  .optimizer(narrowcast::OuterKind::kNesterov)
                  .error_decay(0.99)  // Residuals of the format; sparse formats need less.
                  .wire({.format = narrowcast::WireFormat::kInt8B32, .error_feedback = true, .node_size = 1})) {}
};

struct Checkpoint {
  narrowcast::OuterState outer;
  std::string model;      // of this rank
  std::string optimizer;  // of this rank
};

torch::nn::Linear make_model() {
  torch::manual_seed(0);  // All ranks begin with the same parameters.
  return torch::nn::Linear(8, 8);
}

template <class Module>
std::string bytes_of(const Module& module) {
  std::ostringstream stream;
  torch::save(module, stream);
  return stream.str();
}

template <class Module>
void restore(Module& module, const std::string& bytes) {
  std::istringstream stream(bytes);
  torch::load(module, stream);
}

// A collective: it waits for the exchange that is under way. The state has the optimizer's own tensors, not copies:
// write it, or load it, before the next step.
Checkpoint save(Training& training) {
  return {.outer = training.outer.state(), .model = bytes_of(training.model), .optimizer = bytes_of(training.adamw)};
}

// A collective. Parameters come before the outer state, which replaces them if another number of ranks resumes.
void load(Training& training, const Checkpoint& saved) {
  restore(training.model, saved.model);
  restore(training.adamw, saved.optimizer);
  training.outer.load_state(saved.outer);
}

void take_steps(Training& training, int64_t first, int64_t last) {
  for (int64_t step = first; step < last; ++step) {
    torch::manual_seed(1000 * step + training.group->getRank());  // Samples follow from step and rank.
    const at::Tensor x = torch::randn({32, 8});
    training.outer.zero_grad();
    (training.model->forward(x) - x.flip(1)).square().mean().backward();
    training.outer.step();
  }
}

}  // namespace

int main() {
  const auto env = narrowcast::WorkerEnv::from_environment();
  const narrowcast::ProcessGroupScope scope(env);
  Training first(scope.group(), make_model());
  take_steps(first, 0, 82);  // The fourth exchange is under way until step 84.
  const Checkpoint saved = save(first);

  Training resumed(scope.group(), make_model());
  load(resumed, saved);
  const bool was_under_way = resumed.outer.joined_exchanges() < resumed.outer.exchanges();
  for (Training* const training : {&first, &resumed}) {
    take_steps(*training, 82, 140);
    training->outer.finish();
  }
  const bool same = at::equal(torch::nn::utils::parameters_to_vector(first.model->parameters()),
                              torch::nn::utils::parameters_to_vector(resumed.model->parameters())) &&
                    at::equal(first.outer.reference(), resumed.outer.reference());
  if (env.rank == 0) {
    std::cout << (same ? "the same bits" : "OTHER bits") << " after a resume, " << (was_under_way ? "with" : "WITHOUT")
              << " an exchange under way, " << first.outer.exchanges() << " exchanges\n";
  }
  return same && was_under_way ? 0 : 1;
}
