#include "trainer/ddp/sharding/optimizer_kinds.h"

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <narrowcast/muon.h>
#include "trainer/ddp/optimization/newton_schulz.h"

namespace narrowcast::sharding {
namespace {

using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamState;
using torch::optim::RMSpropParamState;
using torch::optim::SGDParamState;

bool always(const OptimizerOptions& /*options*/) { return true; }
bool never(const OptimizerOptions& /*options*/) { return false; }

// The state is that of Adam or AdamW.
template <class State>
ParameterState read_adam(const OptimizerParamState& state) {
  const auto& adam = static_cast<const State&>(state);
  return {.step = adam.step(), .tensors = {adam.exp_avg(), adam.exp_avg_sq(), adam.max_exp_avg_sq()}};
}

template <class Options>
bool adam_needs(const OptimizerOptions& options, size_t tensor) {
  return tensor < 2 || static_cast<const Options&>(options).amsgrad();
}

template <class State>
std::unique_ptr<OptimizerParamState> make_adam(const ParameterState& state) {
  auto adam = std::make_unique<State>();
  adam->step(state.step.value());
  adam->exp_avg(state.tensors[0]);
  adam->exp_avg_sq(state.tensors[1]);
  adam->max_exp_avg_sq(state.tensors[2]);
  return adam;
}

ParameterState read_rmsprop(const OptimizerParamState& state) {
  const auto& rmsprop = static_cast<const RMSpropParamState&>(state);
  return {.step = rmsprop.step(), .tensors = {rmsprop.square_avg(), rmsprop.momentum_buffer(), rmsprop.grad_avg()}};
}

bool rmsprop_needs(const OptimizerOptions& options, size_t tensor) {
  const auto& rmsprop = static_cast<const torch::optim::RMSpropOptions&>(options);
  return tensor == 0 || (tensor == 1 ? rmsprop.momentum() > 0 : rmsprop.centered());
}

std::unique_ptr<OptimizerParamState> make_rmsprop(const ParameterState& state) {
  auto rmsprop = std::make_unique<RMSpropParamState>();
  rmsprop->step(state.step.value());
  rmsprop->square_avg(state.tensors[0]);
  rmsprop->momentum_buffer(state.tensors[1]);
  rmsprop->grad_avg(state.tensors[2]);
  return rmsprop;
}

ParameterState read_sgd(const OptimizerParamState& state) {
  return {.tensors = {static_cast<const SGDParamState&>(state).momentum_buffer()}};
}

bool sgd_needs(const OptimizerOptions& options, size_t /*tensor*/) {
  return static_cast<const torch::optim::SGDOptions&>(options).momentum() != 0;
}

std::unique_ptr<OptimizerParamState> make_sgd(const ParameterState& state) {
  auto sgd = std::make_unique<SGDParamState>();
  sgd->momentum_buffer(state.tensors[0]);
  return sgd;
}

// Muon's matrices have the first tensor; parameters that AdamW steps count steps and have the others.
bool is_of_matrices(const OptimizerOptions& options) {
  return dynamic_cast<const optim::MuonOptions*>(&options) != nullptr;
}

bool muon_counts_steps(const OptimizerOptions& options) { return !is_of_matrices(options); }

bool muon_needs(const OptimizerOptions& options, size_t tensor) { return is_of_matrices(options) == (tensor == 0); }

ParameterState read_muon(const OptimizerParamState& state) {
  if (const auto* const of_matrix = dynamic_cast<const optim::MuonParamState*>(&state)) {
    return {.tensors = {of_matrix->momentum_buffer(), at::Tensor(), at::Tensor()}};
  }
  const auto& adamw = static_cast<const torch::optim::AdamWParamState&>(state);
  return {.step = adamw.step(), .tensors = {at::Tensor(), adamw.exp_avg(), adamw.exp_avg_sq()}};
}

std::unique_ptr<OptimizerParamState> make_muon(const ParameterState& state) {
  if (!state.step.has_value()) {
    auto of_matrix = std::make_unique<optim::MuonParamState>();
    of_matrix->momentum_buffer(state.tensors[0]);
    return of_matrix;
  }
  auto adamw = std::make_unique<torch::optim::AdamWParamState>();
  adamw->step(*state.step);
  adamw->exp_avg(state.tensors[1]);
  adamw->exp_avg_sq(state.tensors[2]);
  return adamw;
}

// A pass over an element takes about as long as this number of operations of a matrix multiplication.
constexpr int64_t kOperationsPerElement = 200;

int64_t muon_cost(const OptimizerOptions& options, at::IntArrayRef sizes) {
  const int64_t elements = kOperationsPerElement * c10::multiply_integers(sizes);
  const auto* const muon = dynamic_cast<const optim::MuonOptions*>(&options);
  return muon != nullptr ? elements + optim::orthogonalization_cost(sizes, muon->ns_steps()) : elements;
}

}  // namespace

const OptimizerKind* kind_of(const torch::optim::Optimizer& optimizer) {
  static const std::vector<std::string> adam_tensors = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"};
  static const OptimizerKind adam = {"Adam",
                                     adam_tensors,
                                     always,
                                     adam_needs<torch::optim::AdamOptions>,
                                     read_adam<torch::optim::AdamParamState>,
                                     make_adam<torch::optim::AdamParamState>};
  static const OptimizerKind adamw = {"AdamW",
                                      adam_tensors,
                                      always,
                                      adam_needs<torch::optim::AdamWOptions>,
                                      read_adam<torch::optim::AdamWParamState>,
                                      make_adam<torch::optim::AdamWParamState>};
  static const OptimizerKind rmsprop = {
      "RMSprop", {"square_avg", "momentum_buffer", "grad_avg"}, always, rmsprop_needs, read_rmsprop, make_rmsprop};
  static const OptimizerKind sgd = {"SGD", {"momentum_buffer"}, never, sgd_needs, read_sgd, make_sgd};
  static const OptimizerKind muon = {
      "Muon",   {"momentum_buffer", "exp_avg", "exp_avg_sq"}, muon_counts_steps, muon_needs, read_muon, make_muon,
      muon_cost};
  if (dynamic_cast<const torch::optim::Adam*>(&optimizer) != nullptr) return &adam;
  if (dynamic_cast<const torch::optim::AdamW*>(&optimizer) != nullptr) return &adamw;
  if (dynamic_cast<const torch::optim::RMSprop*>(&optimizer) != nullptr) return &rmsprop;
  if (dynamic_cast<const torch::optim::SGD*>(&optimizer) != nullptr) return &sgd;
  if (dynamic_cast<const optim::Muon*>(&optimizer) != nullptr) return &muon;
  return nullptr;
}

std::string kind_names() { return "Adam, AdamW, Muon, RMSprop and SGD"; }

std::string elementwise_kind_names() { return "Adam, AdamW, RMSprop and SGD"; }

}  // namespace narrowcast::sharding
