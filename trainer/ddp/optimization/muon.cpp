#include <narrowcast/muon.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include <narrowcast/consensus.h>
#include "trainer/base/files/hash.h"
#include "trainer/ddp/optimization/fused_step.h"
#include "trainer/ddp/optimization/newton_schulz.h"

namespace narrowcast::optim {
namespace {

using torch::optim::AdamWOptions;
using torch::optim::Optimizer;
using torch::optim::OptimizerParamGroup;

const MuonOptions* muon_options(const OptimizerParamGroup& group) {
  return dynamic_cast<const MuonOptions*>(&group.options());
}

double lr_factor(const MuonOptions& options, const at::Tensor& matrix) {
  const auto rows = static_cast<double>(matrix.size(0));
  const auto columns = static_cast<double>(matrix.size(1));
  return options.adjust_lr_fn() == AdjustLr::kOriginal ? std::sqrt(std::max(1.0, rows / columns))
                                                       : 0.2 * std::sqrt(std::max(rows, columns));
}

void step_matrix(at::Tensor matrix, const at::Tensor& gradient, at::Tensor momentum_buffer,
                 const MuonOptions& options) {
  momentum_buffer.lerp_(gradient, 1 - options.momentum());
  if (matrix.numel() == 0) {
    return;
  }
  const at::Tensor update = options.nesterov() ? gradient.lerp(momentum_buffer, options.momentum()) : momentum_buffer;
  const at::Tensor orthogonal = orthogonalized(update, options);
  matrix.mul_(1 - options.lr() * options.weight_decay());
  matrix.add_(orthogonal, -options.lr() * lr_factor(options, matrix));
}

std::string out_of_range(size_t group, const char* name, const char* range, double value) {
  return c10::str(name, ": must be ", range, " in group ", group, " of Muon, but is ", value);
}

void check_matrices(const OptimizerParamGroup& group, size_t index, const MuonOptions& options) {
  TORCH_CHECK_VALUE(options.lr() >= 0, out_of_range(index, "lr", "at least 0", options.lr()));
  TORCH_CHECK_VALUE(options.weight_decay() >= 0,
                    out_of_range(index, "weight_decay", "at least 0", options.weight_decay()));
  TORCH_CHECK_VALUE(options.momentum() >= 0 && options.momentum() <= 1,
                    out_of_range(index, "momentum", "in 0..1", options.momentum()));
  TORCH_CHECK_VALUE(options.eps() > 0, out_of_range(index, "eps", "positive", options.eps()));
  TORCH_CHECK_VALUE(options.ns_steps() >= 1 && options.ns_steps() < 100,
                    out_of_range(index, "ns_steps", "in 1..99", static_cast<double>(options.ns_steps())));
  TORCH_CHECK_VALUE(!options.ns_dtype() || *options.ns_dtype() == at::kBFloat16 || *options.ns_dtype() == at::kFloat,
                    "ns_dtype: must be BFloat16 or Float in group ", index, " of Muon, but is ", *options.ns_dtype());
  for (const at::Tensor& parameter : group.params()) {
    TORCH_CHECK_VALUE(parameter.dim() == 2 && parameter.is_floating_point(), "a parameter in group ", index,
                      " of Muon is ", parameter.scalar_type(), " ", parameter.sizes(),
                      ", but must be a matrix of a floating type: put it into a group with AdamWOptions");
  }
}

void check_group(const OptimizerParamGroup& group, size_t index) {
  if (const MuonOptions* const options = muon_options(group)) {
    check_matrices(group, index, *options);
    return;
  }
  const auto* const adamw = dynamic_cast<const AdamWOptions*>(&group.options());
  TORCH_CHECK_VALUE(adamw != nullptr, "group ", index, " of Muon: its options must be MuonOptions or AdamWOptions");
  TORCH_CHECK_VALUE(!adamw->amsgrad(), "amsgrad: must be false in group ", index, " of Muon");
  TORCH_CHECK_VALUE(adamw->lr() >= 0, out_of_range(index, "lr", "at least 0", adamw->lr()));
  TORCH_CHECK_VALUE(adamw->eps() >= 0, out_of_range(index, "eps", "at least 0", adamw->eps()));
  TORCH_CHECK_VALUE(adamw->weight_decay() >= 0,
                    out_of_range(index, "weight_decay", "at least 0", adamw->weight_decay()));
  const auto [beta1, beta2] = adamw->betas();
  TORCH_CHECK_VALUE(beta1 >= 0 && beta1 < 1, out_of_range(index, "betas", "at least 0 and below 1", beta1));
  TORCH_CHECK_VALUE(beta2 >= 0 && beta2 < 1, out_of_range(index, "betas", "at least 0 and below 1", beta2));
}

void check_groups(const Optimizer& optimizer) {
  for (size_t i = 0; i < optimizer.param_groups().size(); ++i) {
    check_group(optimizer.param_groups()[i], i);
    for (const at::Tensor& parameter : optimizer.param_groups()[i].params()) {
      TORCH_CHECK_VALUE(!parameter.grad().defined() || parameter.grad().layout() == at::kStrided, "a gradient of ",
                        parameter.sizes(), " in group ", i, " of Muon has the layout ", parameter.grad().layout(),
                        ", but must be dense");
    }
  }
}

// The fused step needs gradients in the order of their parameters' memory.
void lay_out_gradients(OptimizerParamGroup& group) {
  for (at::Tensor& parameter : group.params()) {
    TORCH_CHECK_VALUE(parameter.is_non_overlapping_and_dense(), "a parameter ", parameter.sizes(), " with strides ",
                      parameter.strides(), " has holes or overlaps in memory, which Muon's AdamW does not support");
    if (parameter.grad().defined() && !can_step_fused(parameter)) {
      parameter.mutable_grad() = at::empty_like(parameter).copy_(parameter.grad());
    }
  }
}

// A matrix of numbers in -0.5..0.5 without a pattern, with the same bits on every machine.
at::Tensor scattered_numbers(at::IntArrayRef sizes, const at::Tensor& like) {
  const at::Tensor numbers = at::arange(sizes[0] * sizes[1], at::kDouble).add_(1).mul_(0.6180339887498949);
  return numbers.frac_().sub_(0.5).reshape(sizes).to(like.options());
}

// The hash of a matrix and its momentum after a step with these numbers.
uint64_t hash_of_step(const at::Tensor& like, const MuonOptions& options) {
  const at::Tensor matrix = scattered_numbers(like.sizes(), like);
  const at::Tensor momentum = at::zeros_like(matrix);
  step_matrix(matrix, matrix.mul(matrix).sub_(0.1), momentum, options);
  uint64_t hash = kHashStart;
  for (const at::Tensor& tensor : {matrix.cpu(), momentum.cpu()}) {
    hash = hash_of_content({static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()}, hash);
  }
  return hash;
}

}  // namespace

Muon::Muon(const std::vector<OptimizerParamGroup>& groups, const MuonOptions& defaults)
    : Optimizer(std::vector<OptimizerParamGroup>(), std::make_unique<MuonOptions>(defaults)) {
  for (const OptimizerParamGroup& group : groups) add_param_group(group);
  check_groups(*this);
}

Muon::Muon(std::vector<at::Tensor> matrices, const MuonOptions& defaults)
    : Muon({OptimizerParamGroup(std::move(matrices))}, defaults) {}

void Muon::add_param_group(const OptimizerParamGroup& group) {
  Optimizer::add_param_group(group);
  if (group.has_options()) param_groups().back().set_options(group.options().clone());
}

at::Tensor Muon::step(LossClosure closure) {
  at::Tensor loss;
  if (closure != nullptr) {
    const at::AutoGradMode with_gradients(true);
    loss = closure();
  }
  step_scaled(1);
  return loss;
}

void Muon::step_scaled(double gradient_scale) {
  const at::NoGradGuard no_grad;
  check_groups(*this);
  for (OptimizerParamGroup& group : param_groups()) {
    const MuonOptions* const options = muon_options(group);
    if (options == nullptr) {
      lay_out_gradients(group);
      fused_adamw_step(*this, group, gradient_scale);
      continue;
    }
    for (const at::Tensor& parameter : group.params()) {
      if (!parameter.grad().defined()) {
        continue;
      }
      auto& state = this->state()[parameter.unsafeGetTensorImpl()];
      if (state == nullptr) {
        auto first = std::make_unique<MuonParamState>();
        first->momentum_buffer(at::zeros_like(parameter, at::MemoryFormat::Preserve));
        state = std::move(first);
      }
      const at::Tensor gradient = gradient_scale == 1 ? parameter.grad() : parameter.grad().mul(gradient_scale);
      step_matrix(parameter, gradient, static_cast<MuonParamState&>(*state).momentum_buffer(), *options);
    }
  }
}

// One collective, whatever this rank's groups are: sharded optimizers have other parameters on each rank.
void Muon::use_common_ns_dtype(const ProcessGroupPtr& group) {
  at::Device device = at::kCPU;
  for (const OptimizerParamGroup& any : param_groups()) {
    if (!any.params().empty()) device = any.params()[0].device();
  }
  const at::ScalarType common = common_ns_dtype(group, device);
  for (OptimizerParamGroup& of_matrices : param_groups()) {
    auto* const options = dynamic_cast<MuonOptions*>(&of_matrices.options());
    if (options != nullptr && !options->ns_dtype().has_value()) options->ns_dtype(common);
  }
}

void Muon::make_replicas_equal(const ProcessGroupPtr& group) {
  const at::NoGradGuard no_grad;
  use_common_ns_dtype(group);
  std::vector<NamedValue> steps;
  std::set<std::string> seen;
  for (const OptimizerParamGroup& of_matrices : param_groups()) {
    const MuonOptions* const options = muon_options(of_matrices);
    if (options == nullptr || of_matrices.params().empty()) {
      continue;
    }
    MuonOptions compared = *options;
    compared.lr(1);
    for (const at::Tensor& parameter : of_matrices.params()) {
      const std::string step = c10::str("Muon's step of a ", parameter.size(0), " x ", parameter.size(1), " matrix in ",
                                        *options->ns_dtype());
      if (parameter.numel() > 0 && seen.insert(step).second) {
        steps.push_back({step + " (processors and numbers of threads must be the same unless the optimizer is sharded "
                                "over all ranks)",
                         c10::str(hash_of_step(parameter, compared))});
      }
    }
  }
  check_equal_on_all_ranks(group, steps);
}

}  // namespace narrowcast::optim
