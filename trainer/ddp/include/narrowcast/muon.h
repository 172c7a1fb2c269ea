// Muon, an optimizer for the matrices of hidden layers, and AdamW for all other parameters, as one optimizer.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/arg.h>
#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <narrowcast/export.h>
#include <narrowcast/process_group.h>

namespace narrowcast {
namespace NARROWCAST_EXPORT optim {

// The factor by which a [rows, columns] matrix's learning rate is multiplied, because the orthogonalised update of a
// larger matrix has smaller elements. The names are PyTorch's.
enum class AdjustLr {
  kOriginal,       // sqrt(max(1, rows / columns)), of Keller Jordan's program. Learning rates are about 0.02.
  kMatchRmsAdamW,  // 0.2 sqrt(max(rows, columns)) of Moonlight: the update has AdamW's size, so AdamW's rates fit.
};

// "original" or "match_rms_adamw"; anything else throws c10::ValueError.
AdjustLr parse_adjust_lr(const std::string& name);

// The inverse of parse_adjust_lr. c10::ValueError for a number that is not an AdjustLr.
std::string to_string(AdjustLr adjust_lr);

// The options of a group of matrices. Names, defaults and meanings are those of torch.optim.Muon.
struct MuonOptions : public torch::optim::OptimizerCloneableOptions<MuonOptions> {
  using Coefficients = std::array<double, 3>;  // factors of X, A X and A A X, see Muon

  MuonOptions(double lr = 1e-3);  // NOLINT(google-explicit-constructor): as LibTorch's options

  TORCH_ARG(double, lr) = 1e-3;           // >= 0
  TORCH_ARG(double, weight_decay) = 0.1;  // >= 0; decoupled: a step multiplies the matrix by 1 - lr * weight_decay
  TORCH_ARG(double, momentum) = 0.95;     // in 0..1
  TORCH_ARG(bool, nesterov) = true;       // whether the update is momentum * b + (1 - momentum) * g, not b

  // a, b and c of an iteration, see Muon.
  TORCH_ARG(Coefficients, ns_coefficients) = {3.4445, -4.7750, 2.0315};
  TORCH_ARG(int64_t, ns_steps) = 5;  // Number of iterations, in 1..99.
  TORCH_ARG(double, eps) = 1e-7;     // > 0; the least norm by which an update is divided

  TORCH_ARG(AdjustLr, adjust_lr_fn) = AdjustLr::kOriginal;  // selects the factor of lr

  // The dtype of the iterations: bfloat16, or float32. By default that of this machine (native_ns_dtype). torch's Muon
  // always uses bfloat16. Ranks must have the same for equal replicas (Muon::make_replicas_equal).
  TORCH_ARG(std::optional<at::ScalarType>, ns_dtype) = std::nullopt;

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
  double get_lr() const override;
  void set_lr(double lr) override;
};

// The state of a matrix.
struct MuonParamState : public torch::optim::OptimizerCloneableParamState<MuonParamState> {
  TORCH_ARG(at::Tensor, momentum_buffer);  // as the parameter

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
};

// The dtype in which the device multiplies matrices fast: bfloat16 on GPUs, and on processors with AMX or AVX-512
// instructions for it (avx512_bf16); else float32.
at::ScalarType native_ns_dtype(at::Device device);

// A collective: bfloat16 if it is the native_ns_dtype of all ranks, else float32. Throws c10::DistBackendError if a
// peer fails.
at::ScalarType common_ns_dtype(const ProcessGroupPtr& group, at::Device device);

// Muon: momentum, made orthogonal. By Keller Jordan et al. (https://kellerjordan.github.io/posts/muon, 2024), with the
// weight decay and the AdjustLr::kMatchRmsAdamW of Moonlight (arXiv 2502.16982). The steps are those of PyTorch's
// torch.optim.Muon: with bfloat16 and the same LibTorch, on the same machine, bit for bit.
//
// A group whose options are MuonOptions holds matrices: parameters with two dimensions, of floating types. A group
// whose options are torch::optim::AdamWOptions takes AdamW's step. Give AdamW embeddings, output layers, biases and the
// parameters of norms, for which Muon is not meant:
//
//   std::vector<torch::optim::OptimizerParamGroup> groups;
//   groups.emplace_back(matrices, std::make_unique<MuonOptions>(MuonOptions(0.02)));
//   groups.emplace_back(others, std::make_unique<torch::optim::AdamWOptions>(3e-3));
//   Muon optimizer(groups);
//
// A step of a matrix x [m, n] with gradient g and momentum buffer b, which begins as zeros:
//   b = momentum * b + (1 - momentum) * g
//   u = momentum * b + (1 - momentum) * g if nesterov, else b
//   x = x * (1 - lr * weight_decay) - lr * factor * O(u)     where factor is that of adjust_lr_fn
// O(u) replaces the singular values of u by values near 1, in about 0.7..1.2: u, transposed if m > n, is divided by its
// Frobenius norm, and then each of ns_steps Newton-Schulz iterations computes
//   X = a X + (b A + c A A) X    where A = X X^T
// They take 2 ns_steps k^2 (2 max(m, n) + k) floating-point operations, where k = min(m, n).
//
// It is one optimizer for DistributedDataParallel, OuterOptimizer and LearningRateSchedule. ShardedOptimizer needs
// ShardOptions::whole_parameters. torch::save and torch::load keep options and state, for the same groups.
class Muon : public torch::optim::Optimizer {
 public:
  // Groups without options get `defaults`. Throws c10::ValueError naming the group for options of another class, an
  // option out of its range, AdamW's amsgrad, and a parameter that is not a matrix in a group of matrices.
  explicit Muon(const std::vector<torch::optim::OptimizerParamGroup>& groups, const MuonOptions& defaults = {});
  // One group of matrices.
  explicit Muon(std::vector<at::Tensor> matrices, const MuonOptions& defaults = {});

  // Adds a group as the constructor does, which the next step checks. It hides Optimizer's function, which in LibTorch
  // 2.15 replaces options by `defaults` unless their class is one of LibTorch's own and that of the defaults.
  void add_param_group(const torch::optim::OptimizerParamGroup& group);

  // Parameters without a gradient are skipped. Returns the closure's loss, or an undefined tensor. Throws as the
  // constructor, before anything is changed, and c10::ValueError for a sparse gradient. AdamW's parameters must be
  // dense in memory; else it throws c10::ValueError, when the groups before may have taken their step.
  at::Tensor step(LossClosure closure = nullptr) override;

  // step() with `gradient_scale` times the gradients, which are left unscaled, for example to clip them.
  void step_scaled(double gradient_scale);

  // A collective: sets each ns_dtype that is not set to common_ns_dtype. Throws as that function.
  void use_common_ns_dtype(const ProcessGroupPtr& group);

  // A collective, before the first step and before a ShardedOptimizer: use_common_ns_dtype, so that ranks with equal
  // parameters and gradients take equal steps. Then each rank takes a step with the same matrix of each size. Throws
  // c10::ValueError on all ranks if the results differ in a bit, as between processors that multiply in another order,
  // or numbers of threads. Such ranks must shard the optimizer over all ranks. DistBackendError if a peer fails.
  void make_replicas_equal(const ProcessGroupPtr& group);

  void save(torch::serialize::OutputArchive& archive) const override;
  // Throws c10::ValueError, and changes nothing, if the groups, their kinds, or the sizes or dtypes of parameters are
  // others than those that were saved. State of another device moves to the parameter's. An ns_dtype that was saved
  // replaces the present one: call make_replicas_equal after load.
  void load(torch::serialize::InputArchive& archive) override;
};

}  // namespace optim
}  // namespace narrowcast
