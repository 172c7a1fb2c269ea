// Streaming DiLoCo on groups of ranks: the ranks of a group average gradients in each step, and all ranks average
// parameters every 30 steps, one half of them at a time, while they continue to train.
//
//   narrowcast-run --standalone --nproc_per_node=4 ./local_steps_in_groups [nesterov | sgd]
//
// Afterwards the same training with averages as PyTorch has them. Hierarchical: groups of two every 4 steps, all ranks
// every 16. Periodic: all ranks every 4.
#include <narrowcast/narrowcast.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <iostream>
#include <memory>
#include <vector>

namespace {

constexpr int64_t kWarmup = 30;  // steps in which all ranks average gradients
constexpr int64_t kSteps = kWarmup + 600;
constexpr int64_t kGroup = 2;  // ranks that share a machine

// The model learns to reverse a vector.
torch::nn::Linear make_model() {
  torch::manual_seed(0);  // All ranks begin with the same parameters.
  return torch::nn::Linear(32, 32);
}

at::Tensor loss_of(const at::Tensor& predicted, const at::Tensor& x) {
  return (predicted - x.flip(1)).square().sum(1).mean();
}

bool has_finite_gradients(const torch::nn::Linear& model) {
  const std::vector<at::Tensor> parameters = model->parameters();
  return std::all_of(parameters.begin(), parameters.end(),
                     [](const at::Tensor& parameter) { return parameter.grad().isfinite().all().item<bool>(); });
}

double loss_of_own(torch::nn::Linear& model) {
  const torch::NoGradGuard no_grad;
  const at::Tensor x = torch::eye(32);
  return loss_of(model->forward(x), x).item<double>();
}

// A collective: the loss of the outer parameters.
double evaluate(narrowcast::OuterOptimizer& outer, torch::nn::Linear& model) {
  const narrowcast::OuterOptimizer::OuterParameters outer_parameters(outer);  // Until the end of the scope.
  return loss_of_own(model);
}

// What the options mean, before anything is sent.
void print_plan(const narrowcast::OuterOptions& options, int64_t elements) {
  std::cout << to_string(options.optimizer()) << " with learning rate " << options.effective_learning_rate()
            << " and momentum " << options.effective_momentum() << "; residuals decay by "
            << options.effective_error_decay() << "; at most " << options.largest_fragment(elements) << " of "
            << elements << " parameters in an exchange\nexchanges of the first round:";
  for (int64_t step = 1; step <= options.effective_first_exchange() + options.sync_every(); ++step) {
    if (const auto fragment = options.fragment_due(step)) {
      std::cout << " fragment " << *fragment << " after step " << options.warmup_steps() + step << ',';
    }
  }
  std::cout << '\n';
}

void train_with_outer_steps(const narrowcast::ProcessGroupPtr& group, narrowcast::OuterKind kind) {
  torch::nn::Linear model = make_model();
  narrowcast::DistributedDataParallel ddp(
      model, group, narrowcast::DdpOptions().hook("post_local_sgd").local({.start = kWarmup, .group_size = kGroup}));
  torch::optim::AdamW adamw(model->parameters(), /*lr=*/0.02);
  narrowcast::OuterOptimizer outer(
      adamw, group,
      narrowcast::OuterOptions()
          .sync_every(30)
          .warmup_steps(kWarmup)
          .optimizer(kind)
          .learning_rate(0.4)
          .momentum(0.9)
          .fragments(2)
          .overlap_steps(5)
          .mix(0.5)
          .wire({.format = narrowcast::WireFormat::kInt4B32, .error_feedback = true, .node_size = kGroup}));
  if (group->getRank() == 0) {
    print_plan(outer.options(), outer.elements());
  }
  torch::manual_seed(group->getRank());  // Each rank has different data.
  for (int64_t step = 0; step < kSteps; ++step) {
    const at::Tensor x = torch::randn({16, 32});
    ddp.zero_grad();
    ddp.backward(loss_of(ddp.forward(x), x));  // Averages in a group, and over all ranks in the warm-up.
    if (has_finite_gradients(model)) {
      outer.step();  // AdamW's step, and the exchanges that are due.
    } else {
      outer.skip_step();  // Other groups may take the step.
    }
    if (step + 1 == kWarmup || (step + 1) % 210 == 0) {
      const bool warm = !outer.is_warming_up();
      const double loss = warm ? evaluate(outer, model) : 0;
      if (group->getRank() == 0 && warm) {
        std::cout << "step " << step + 1 << ": loss " << loss << ", " << outer.joined_exchanges() << " of "
                  << outer.exchanges() << " exchanges joined, " << outer.lost_exchanges() << " lost, staleness "
                  << outer.staleness().value_or(0) << '\n';
      }
    }
  }
  outer.finish();
  const std::vector<double> sent = narrowcast::all_reduce_sum(
      group, {static_cast<double>(ddp.payload_bytes_sent()), static_cast<double>(outer.payload_bytes_sent())});
  if (group->getRank() == 0) {
    std::cout << to_string(kind) << ": loss " << loss_of_own(model) << ", " << outer.elements() << " parameters, ranks "
              << (outer.replicas_are_equal() ? "equal" : "differ") << "; all ranks sent " << sent[0] / 1000
              << " kB of gradients and " << sent[1] / 1000 << " kB of parameters\n";
  }
}

void train_with_hierarchical_averages(const narrowcast::ProcessGroupPtr& group) {
  torch::nn::Linear model = make_model();
  torch::optim::SGD sgd(model->parameters(), /*lr=*/0.05);
  const std::vector<narrowcast::AveragingLevel> levels = {{.period = 4, .group_size = kGroup},
                                                          {.period = 16, .group_size = group->getSize()}};
  auto averager = std::make_unique<narrowcast::HierarchicalAverager>(group, levels, /*warmup_steps=*/0);
  torch::manual_seed(group->getRank());
  int64_t averaged_by_all = 0;
  for (int64_t step = 0; step < 200; ++step) {
    const at::Tensor x = torch::randn({16, 32});
    sgd.zero_grad();
    loss_of(model->forward(x), x).backward();
    sgd.step();
    averaged_by_all += averager->average(model->parameters()) == group->getSize() ? 1 : 0;
    if (step == 100) {  // A training that resumes does this: the step is the whole state of an averager.
      const int64_t saved = averager->step();
      averager = std::make_unique<narrowcast::HierarchicalAverager>(group, levels);
      averager->set_step(saved);
    }
  }
  if (group->getRank() == 0) {
    std::cout << "hierarchical averages: loss " << loss_of_own(model) << " after " << averager->step() << " steps, "
              << averaged_by_all << " averages of all ranks\n";
  }
}

void train_with_periodic_averages(const narrowcast::ProcessGroupPtr& group) {
  narrowcast::OuterOptions options;
  options.set("sync_every", int64_t{4});  // By name, as from a configuration: the names are narrowcast-train's flags.
  options.first_exchange(1);              // After steps 1, 5, 9, ..., as PyTorch's PeriodicModelAverager.
  torch::nn::Linear model = make_model();
  torch::optim::SGD sgd(model->parameters(), /*lr=*/0.05);
  narrowcast::OuterOptimizer outer(sgd, group, options);
  torch::manual_seed(group->getRank());
  for (int64_t step = 0; step < 201; ++step) {
    const at::Tensor x = torch::randn({16, 32});
    outer.zero_grad();
    loss_of(model->forward(x), x).backward();
    outer.step();
  }
  outer.finish();
  if (group->getRank() == 0) {
    std::cout << "periodic averages: loss " << loss_of_own(model) << ", " << outer.exchanges() << " exchanges of "
              << (options.sends_parameters() ? "parameters" : "differences");
    for (const narrowcast::hooks::NamedOption& option : options.named()) {
      std::cout << (option.is_given ? ", " + option.name + "=" + narrowcast::hooks::text_of(option.value) : "");
    }
    std::cout << '\n';
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const auto kind = narrowcast::parse_outer_kind(argc > 1 ? argv[1] : "nesterov");
    const auto env = narrowcast::WorkerEnv::from_environment();
    const narrowcast::ProcessGroupScope scope(env);
    scope.run([&] {
      train_with_outer_steps(scope.group(), kind);
      train_with_hierarchical_averages(scope.group());
      train_with_periodic_averages(scope.group());
    });
  } catch (const c10::Error& error) {
    std::cerr << error.what_without_backtrace() << '\n';
    return 1;
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
