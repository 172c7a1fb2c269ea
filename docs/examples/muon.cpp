// Trains a small GPT with Muon for the matrices of its hidden layers, and AdamW for all other parameters.
//   narrowcast-run --standalone --nproc_per_node=2 ./muon
#include <narrowcast/models.h>
#include <narrowcast/muon.h>
#include <narrowcast/narrowcast.h>
#include <torch/serialize.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <sstream>
#include <utility>
#include <vector>

namespace {

namespace models = narrowcast::models;
namespace optim = narrowcast::optim;

constexpr int64_t kSteps = 60;
constexpr int64_t kTokens = 32;

// Sequences of a rule that a model can learn: each token follows from the one before.
models::Batch random_batch() {
  std::vector<at::Tensor> tokens = {torch::randint(kTokens, {16}, at::kLong)};
  for (int64_t i = 0; i < kTokens; ++i) tokens.push_back((tokens.back() * 5 + 3).remainder(kTokens));
  const at::Tensor sequences = torch::stack(tokens, /*dim=*/1);
  return {.inputs = sequences.narrow(1, 0, kTokens), .targets = sequences.narrow(1, 1, kTokens)};
}

bool contains(const std::vector<at::Tensor>& tensors, const at::Tensor& tensor) {
  return std::ranges::any_of(tensors, [&](const at::Tensor& other) { return other.is_same(tensor); });
}

std::vector<torch::optim::OptimizerParamGroup> make_groups(const models::Model& model) {
  std::vector<at::Tensor> matrices;
  std::vector<at::Tensor> others;
  for (const at::Tensor& parameter : model.parameters()) {
    const bool is_hidden = parameter.dim() == 2 && !contains(model.embeddings_and_heads(), parameter);
    (is_hidden ? matrices : others).push_back(parameter);
  }
  const auto of_matrices = optim::MuonOptions(0.02)
                               .adjust_lr_fn(optim::AdjustLr::kMatchRmsAdamW)  // Learning rates are those of AdamW.
                               .weight_decay(0.1)
                               .momentum(0.95);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(matrices, std::make_unique<optim::MuonOptions>(of_matrices));
  groups.emplace_back(others, std::make_unique<torch::optim::AdamWOptions>(0.01));
  return groups;
}

// The state of one matrix.
const at::Tensor& momentum_of(const optim::Muon& optimizer, const at::Tensor& matrix) {
  const auto& state = *optimizer.state().at(matrix.unsafeGetTensorImpl());
  return static_cast<const optim::MuonParamState&>(state).momentum_buffer();
}

}  // namespace

int main() {
  const auto env = narrowcast::WorkerEnv::from_environment();
  const narrowcast::ProcessGroupScope scope(env);
  torch::manual_seed(0);
  const auto model = models::create_model(
      "char_gpt", {{"layers", 1}, {"heads", 2}, {"width", 32}, {"context", kTokens}, {"vocabulary_size", kTokens}});
  narrowcast::DistributedDataParallel ddp(model, scope.group(), narrowcast::DdpOptions().hook("int8"));
  optim::Muon optimizer(make_groups(*model));
  optimizer.make_replicas_equal(scope.group());  // The ranks' processors must compute the same bits.
  torch::manual_seed(env.rank);                  // Each rank has different data.
  at::Tensor loss;
  for (int64_t step = 0; step < kSteps; ++step) {
    for (auto& group : optimizer.param_groups()) {
      group.options().set_lr(0.02 * static_cast<double>(kSteps - step) / kSteps);
    }
    ddp.zero_grad();
    loss = ddp.forward(random_batch());
    ddp.backward(loss);
    optimizer.step();
  }

  // An archive has options and state.
  std::stringstream archive;
  torch::save(optimizer, archive);
  optim::Muon restored(make_groups(*model));
  torch::load(restored, archive);
  const at::Tensor matrix = restored.param_groups()[0].params()[0];
  const bool is_equal = at::equal(momentum_of(restored, matrix), momentum_of(optimizer, matrix));

  // Every option of torch.optim.Muon, for a matrix alone. Iterations are in one dtype on all ranks.
  const at::Tensor alone = torch::randn({16, 48}, torch::requires_grad());
  const auto options = optim::MuonOptions(1)
                           .nesterov(false)
                           .ns_coefficients({2, -1.5, 0.5})
                           .ns_steps(12)
                           .eps(1e-6)
                           .adjust_lr_fn(optim::parse_adjust_lr("original"))
                           .ns_dtype(optim::common_ns_dtype(scope.group(), at::kCPU));
  optim::Muon orthogonalizer({alone}, options);
  orthogonalizer.use_common_ns_dtype(scope.group());  // The same, for groups whose options set no dtype.
  const at::Tensor bias = torch::zeros({48}, torch::requires_grad());
  orthogonalizer.add_param_group({{bias}, std::make_unique<torch::optim::AdamWOptions>(0.01)});
  alone.mutable_grad() = alone.detach().clone();
  const at::Tensor before = alone.detach().clone();
  orthogonalizer.step_scaled(0.5);  // A step with half of the gradients.
  const at::Tensor update = before * (1 - options.get_lr() * options.weight_decay()) - alone.detach();
  if (env.rank == 0) {
    std::cout << "loss " << loss.item<float>() << ", iterations in " << optim::native_ns_dtype(at::kCPU)
              << ", the state is " << (is_equal ? "" : "not ") << "restored, "
              << "singular values of an update from " << torch::linalg_svdvals(update).min().item<float>() << " to "
              << torch::linalg_svdvals(update).max().item<float>() << ", scaled as "
              << to_string(options.adjust_lr_fn()) << '\n';
  }
}
