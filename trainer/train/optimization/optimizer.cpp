#include "trainer/train/optimization/optimizer.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <c10/util/Exception.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <memory>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <narrowcast/errors.h>
#include <narrowcast/learning_rate.h>
#include <narrowcast/model.h>
#include <narrowcast/muon.h>
#include "ops/common/enumerator_names.h"
#include "trainer/ddp/optimization/fused_step.h"
#include "trainer/train/files/model_file.h"

namespace narrowcast::training {
namespace {

using checkpoint::TensorMap;
using torch::optim::AdamWParamState;
using torch::optim::OptimizerParamState;
using torch::optim::SGDParamState;

constexpr const char* kStep = ".step";
constexpr const char* kAverage = ".exp_avg";
constexpr const char* kSquares = ".exp_avg_sq";
constexpr const char* kMomentum = ".momentum_buffer";
constexpr const char* kMaster = ".master";

constexpr EnumeratorNames<OptimizerKind, 3> kOptimizerNames{
    "optimizer",
    "OptimizerKind",
    {{{OptimizerKind::kAdamW, "adamw"}, {OptimizerKind::kSgd, "sgd"}, {OptimizerKind::kMuon, "muon"}}}};

constexpr double kSgdMomentum = 0.9;
constexpr double kMuonMomentum = 0.95;  // As in torch.optim.Muon.

void check_fraction(const char* name, double value) {
  TORCH_CHECK_VALUE(value >= 0 && value < 1, name, ": must be at least 0 and less than 1, but is ", value);
}

// Parameters with and without weight decay.
std::pair<std::vector<at::Tensor>, std::vector<at::Tensor>> split_by_decay(const torch::nn::Module& module) {
  std::vector<at::Tensor> decaying;
  std::vector<at::Tensor> others;
  for (const at::Tensor& parameter : trained_parameters(module)) {
    (parameter.dim() >= 2 ? decaying : others).push_back(parameter);
  }
  return {decaying, others};
}

template <class Optimizer, class Options>
std::unique_ptr<torch::optim::Optimizer> make(const torch::nn::Module& module, Options options) {
  auto [decaying, others] = split_by_decay(module);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::move(decaying), std::make_unique<Options>(options));
  groups.emplace_back(std::move(others), std::make_unique<Options>(options));
  auto optimizer = std::make_unique<Optimizer>(std::move(groups), options);
  // Set only now: LibTorch 2.15 treats a group's option with the type's default value as not given.
  static_cast<Options&>(optimizer->param_groups()[1].options()).weight_decay(0);
  return optimizer;
}

// Muon whose gradients can be scaled in the pass of its step.
class ScaledMuon final : public optim::Muon, public optim::ScalesGradients {
 public:
  using Muon::Muon;

  at::Tensor step(LossClosure closure = nullptr) override {
    const double scale = take_scale();
    TORCH_CHECK_VALUE(closure == nullptr, "optimizer: the trainer's Muon takes no closure");
    step_scaled(scale);
    return {};
  }
};

torch::optim::AdamWOptions adamw_options(const OptimizerOptions& options) {
  return torch::optim::AdamWOptions(0)
      .betas(std::make_tuple(options.beta1, options.beta2))
      .eps(options.epsilon)
      .weight_decay(options.weight_decay);
}

std::unique_ptr<torch::optim::Optimizer> make_muon(const torch::nn::Module& module, const OptimizerOptions& options) {
  const std::vector<at::Tensor> matrices = muon_matrices(module, options.adamw_parameters);
  std::unordered_set<const at::TensorImpl*> of_muon;
  for (const at::Tensor& matrix : matrices) of_muon.insert(matrix.unsafeGetTensorImpl());
  auto [decaying, others] = split_by_decay(module);
  std::erase_if(decaying,
                [&](const at::Tensor& parameter) { return of_muon.contains(parameter.unsafeGetTensorImpl()); });
  const auto of_matrices = optim::MuonOptions(0)
                               .momentum(options.momentum)
                               .weight_decay(options.weight_decay)
                               .adjust_lr_fn(optim::AdjustLr::kMatchRmsAdamW);
  const torch::optim::AdamWOptions adamw = adamw_options(options);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(matrices, std::make_unique<optim::MuonOptions>(of_matrices));
  groups.emplace_back(std::move(decaying), std::make_unique<torch::optim::AdamWOptions>(adamw));
  groups.emplace_back(std::move(others), std::make_unique<torch::optim::AdamWOptions>(adamw));
  auto optimizer = std::make_unique<ScaledMuon>(groups);
  static_cast<torch::optim::AdamWOptions&>(optimizer->param_groups()[2].options()).weight_decay(0);
  return optimizer;
}

void add(TensorMap& state, const std::string& name, const OptimizerParamState& of_parameter) {
  if (const auto* const adamw = dynamic_cast<const AdamWParamState*>(&of_parameter)) {
    state.emplace(name + kStep, at::full({}, adamw->step(), at::kLong));
    state.emplace(name + kAverage, adamw->exp_avg());
    state.emplace(name + kSquares, adamw->exp_avg_sq());
    return;
  }
  if (const auto* const muon = dynamic_cast<const optim::MuonParamState*>(&of_parameter)) {
    state.emplace(name + kMomentum, muon->momentum_buffer());
    return;
  }
  const auto* const sgd = dynamic_cast<const SGDParamState*>(&of_parameter);
  TORCH_CHECK_VALUE(sgd != nullptr, "optimizer: only the states of AdamW, SGD and Muon can be saved");
  if (sgd->momentum_buffer().defined()) {
    state.emplace(name + kMomentum, sgd->momentum_buffer());
  }
}

// Takes tensors out of a state and checks each.
class StateReader {
 public:
  explicit StateReader(TensorMap state) : left_(std::move(state)) {}

  bool has(const std::string& name) const { return left_.count(name) > 0; }

  at::Tensor take_like(const std::string& name, const at::Tensor& parameter) {
    at::Tensor tensor = take(name);
    NARROWCAST_CHECK_INPUT(tensor.sizes() == parameter.sizes() && tensor.scalar_type() == parameter.scalar_type(),
                           "the optimizer's '", name, "' is ", tensor.scalar_type(), " ", tensor.sizes(),
                           ", but the parameter is ", parameter.scalar_type(), " ", parameter.sizes());
    return at::empty_like(parameter, at::MemoryFormat::Preserve).copy_(tensor);
  }

  int64_t take_int(const std::string& name) {
    const at::Tensor tensor = take(name);
    NARROWCAST_CHECK_INPUT(tensor.scalar_type() == at::kLong && tensor.numel() == 1, "the optimizer's '", name,
                           "' is not an integer");
    return tensor.item<int64_t>();
  }

  // A sharded optimizer's masters are for itself only (narrowcast/sharded_optimizer.h).
  void drop_master(const std::string& name) { left_.erase(name + kMaster); }

  void check_empty() const {
    NARROWCAST_CHECK_INPUT(left_.empty(), "the optimizer's '", left_.begin()->first, "' is unknown");
  }

 private:
  at::Tensor take(const std::string& name) {
    const auto found = left_.find(name);
    NARROWCAST_CHECK_INPUT(found != left_.end(), "the optimizer's '", name, "' is missing");
    at::Tensor tensor = found->second;
    left_.erase(found);
    return tensor;
  }

  TensorMap left_;
};

// These functions return nothing for a parameter that had taken no step.
std::unique_ptr<OptimizerParamState> take_adamw(StateReader& reader, const std::string& name,
                                                const at::Tensor& parameter) {
  if (!reader.has(name + kStep)) {
    return nullptr;
  }
  auto state = std::make_unique<AdamWParamState>();
  state->step(reader.take_int(name + kStep));
  state->exp_avg(reader.take_like(name + kAverage, parameter));
  state->exp_avg_sq(reader.take_like(name + kSquares, parameter));
  return state;
}

// `State` is SGD's or that of Muon's matrices.
template <class State>
std::unique_ptr<OptimizerParamState> take_momentum(StateReader& reader, const std::string& name,
                                                   const at::Tensor& parameter) {
  if (!reader.has(name + kMomentum)) {
    return nullptr;
  }
  auto state = std::make_unique<State>();
  state->momentum_buffer(reader.take_like(name + kMomentum, parameter));
  return state;
}

using TakeState = std::unique_ptr<OptimizerParamState> (*)(StateReader&, const std::string&, const at::Tensor&);

TakeState take_function(const torch::optim::OptimizerOptions& options) {
  if (dynamic_cast<const torch::optim::AdamWOptions*>(&options) != nullptr) return take_adamw;
  if (dynamic_cast<const optim::MuonOptions*>(&options) != nullptr) return take_momentum<optim::MuonParamState>;
  return take_momentum<SGDParamState>;
}

// By parameter, the function that takes its state.
std::unordered_map<const at::TensorImpl*, TakeState> take_functions(const torch::optim::Optimizer& optimizer) {
  std::unordered_map<const at::TensorImpl*, TakeState> functions;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      functions.emplace(parameter.unsafeGetTensorImpl(), take_function(group.options()));
    }
  }
  return functions;
}

// Whether `name` is `wanted`, or lies in the module `wanted`.
bool is_or_lies_in(const std::string& name, const std::string& wanted) {
  return name == wanted || name.starts_with(wanted + ".");
}

}  // namespace

OptimizerKind parse_optimizer(const std::string& name) { return kOptimizerNames.parse_known(name); }

std::string to_string(OptimizerKind kind) { return std::string(kOptimizerNames.name_of(kind)); }

std::string optimizer_names() { return kOptimizerNames.joined(" or "); }

double usual_momentum(OptimizerKind kind) {
  return kind == OptimizerKind::kSgd ? kSgdMomentum : kind == OptimizerKind::kMuon ? kMuonMomentum : 0;
}

void check_optimizer_options(const OptimizerOptions& options) {
  TORCH_CHECK_VALUE(options.weight_decay >= 0, "weight_decay: must be at least 0, but is ", options.weight_decay);
  check_fraction("momentum", options.momentum);
  check_fraction("beta1", options.beta1);
  check_fraction("beta2", options.beta2);
  TORCH_CHECK_VALUE(options.epsilon > 0, "epsilon: must be positive, but is ", options.epsilon);
  TORCH_CHECK_VALUE(options.adamw_parameters.empty() || options.kind == OptimizerKind::kMuon,
                    "adamw_parameters: has no effect with ", to_string(options.kind));
  TORCH_CHECK_VALUE(options.kind != OptimizerKind::kAdamW || options.momentum == 0,
                    "momentum: has no effect with adamw, but is ", options.momentum);
}

std::vector<at::Tensor> trained_parameters(const torch::nn::Module& module) {
  std::vector<at::Tensor> parameters = module.parameters();
  std::erase_if(parameters, [](const at::Tensor& parameter) { return !parameter.requires_grad(); });
  return parameters;
}

std::vector<at::Tensor> muon_matrices(const torch::nn::Module& module,
                                      const std::vector<std::string>& adamw_parameters) {
  std::unordered_set<const at::TensorImpl*> excluded;
  if (const auto* const model = dynamic_cast<const models::Model*>(&module)) {
    for (const at::Tensor& weight : model->embeddings_and_heads()) excluded.insert(weight.unsafeGetTensorImpl());
  }
  std::vector<std::string> left = adamw_parameters;
  std::vector<at::Tensor> matrices;
  for (const auto& item : module.named_parameters()) {
    const at::Tensor& parameter = item.value();
    if (parameter.dim() != 2 || !parameter.requires_grad() || excluded.contains(parameter.unsafeGetTensorImpl())) {
      continue;
    }
    const auto names_it = [&](const std::string& wanted) { return is_or_lies_in(item.key(), wanted); };
    if (std::ranges::any_of(adamw_parameters, names_it)) {
      std::erase_if(left, names_it);
    } else {
      matrices.push_back(parameter);
    }
  }
  TORCH_CHECK_VALUE(left.empty(), "adamw_parameters: '", left.front(), "' names no matrix that muon would step");
  TORCH_CHECK_VALUE(!matrices.empty(), "optimizer: the model has no matrix that muon would step; use adamw");
  return matrices;
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const torch::nn::Module& module,
                                                        const OptimizerOptions& options) {
  check_optimizer_options(options);
  if (options.kind == OptimizerKind::kSgd) {
    return make<optim::Fused<torch::optim::SGD>>(
        module, torch::optim::SGDOptions(0).momentum(options.momentum).weight_decay(options.weight_decay));
  }
  if (options.kind == OptimizerKind::kMuon) {
    return make_muon(module, options);
  }
  return make<optim::Fused<torch::optim::AdamW>>(module, adamw_options(options));
}

void set_learning_rates(torch::optim::Optimizer& optimizer, double learning_rate, double of_adamw) {
  set_learning_rate(optimizer, learning_rate);
  if (dynamic_cast<const optim::Muon*>(&optimizer) == nullptr) {
    return;
  }
  for (auto& group : optimizer.param_groups()) {
    if (auto* const adamw = dynamic_cast<torch::optim::AdamWOptions*>(&group.options())) {
      adamw->lr(of_adamw);
    }
  }
}

void scale_next_step(torch::optim::Optimizer& optimizer, double scale) {
  auto* const scales = dynamic_cast<optim::ScalesGradients*>(&optimizer);
  TORCH_CHECK_VALUE(scales != nullptr, "optimizer: only those of make_optimizer can scale gradients");
  scales->scale_next_step(scale);
}

TensorMap optimizer_state(const torch::optim::Optimizer& optimizer, const torch::nn::Module& module) {
  TensorMap state;
  for (const auto& [name, parameter] : files::state_of(module)) {
    const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
    if (found != optimizer.state().end()) {
      add(state, name, *found->second);
    }
  }
  return state;
}

void load_optimizer_state(torch::optim::Optimizer& optimizer, const torch::nn::Module& module, const TensorMap& state) {
  StateReader reader(state);
  const auto functions = take_functions(optimizer);
  std::vector<std::pair<void*, std::unique_ptr<OptimizerParamState>>> loaded;
  for (const auto& [name, parameter] : files::state_of(module)) {
    reader.drop_master(name);
    const auto take = functions.find(parameter.unsafeGetTensorImpl());
    if (take == functions.end()) {
      continue;
    }
    if (auto of_parameter = take->second(reader, name, parameter)) {
      loaded.emplace_back(parameter.unsafeGetTensorImpl(), std::move(of_parameter));
    }
  }
  reader.check_empty();
  for (auto& [parameter, of_parameter] : loaded) {
    optimizer.state()[parameter] = std::move(of_parameter);
  }
}

}  // namespace narrowcast::training
