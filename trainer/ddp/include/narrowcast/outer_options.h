// Options of OuterOptimizer.
#pragma once

#include <torch/arg.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <narrowcast/export.h>
#include <narrowcast/hook_options.h>

namespace narrowcast {

// What an outer step makes of the reference x, given D = the mean over ranks of (x - a rank's parameters), which is the
// way that they went, with the sign of a gradient. The last two are torch::optim::SGD.
enum class OuterKind {
  kAverage,   // x - D: the ranks' mean. Periodic averaging, post-local SGD
  kSgd,       // v <- momentum v + D; x - learning_rate v
  kNesterov,  // v <- momentum v + D; x - learning_rate (D + momentum v). DiLoCo (arXiv 2311.08105)
};

// "average", "sgd", "nesterov". c10::ValueError for a number that is no OuterKind.
NARROWCAST_EXPORT std::string_view to_string(OuterKind kind);

// The inverse of to_string. c10::ValueError for other names.
NARROWCAST_EXPORT OuterKind parse_outer_kind(std::string_view name);

// Set with chained calls: OuterOptions().sync_every(30).optimizer(OuterKind::kNesterov). All ranks must pass the same;
// OuterOptimizer checks that.
struct NARROWCAST_EXPORT OuterOptions {
  // Steps from one exchange of a parameter to its next, >= 1 and a multiple of `fragments`.
  TORCH_ARG(int64_t, sync_every) = 1;

  // What is made of the mean.
  TORCH_ARG(OuterKind, optimizer) = OuterKind::kAverage;

  // > 0. Without a value 1, and 0.7 with nesterov, as DiLoCo found best. average takes none.
  TORCH_ARG(std::optional<double>, learning_rate) = std::nullopt;

  // 0 <= momentum < 1, with nesterov > 0. Without a value 0, and 0.9 with nesterov. average takes none.
  TORCH_ARG(std::optional<double>, momentum) = std::nullopt;

  // Equal parts of the parameters, which are exchanged one after the other, sync_every / fragments steps apart: the
  // network has to carry less at once. >= 1. (Streaming DiLoCo, arXiv 2501.18512.)
  TORCH_ARG(int64_t, fragments) = 1;

  // Steps that go on while a fragment is exchanged: 0 waits for it at once. >= 0 and < sync_every / fragments, so that
  // one fragment is under way at most.
  TORCH_ARG(int64_t, overlap_steps) = 0;

  // The share that a rank keeps of its own parameters when an exchange is over: mix * own + (1 - mix) * reference, in
  // 0..1. With 1 it never takes the reference before finish.
  TORCH_ARG(double, mix) = 0;

  // How differences travel, as with the hook quantized_allreduce: their format, error feedback over exchanges, levels
  // where ranks share a node. exempt_one_dimensional and auto_bits have no effect and are refused, and so is what is
  // about rounding with fp32, which rounds nothing.
  TORCH_ARG(hooks::WireOptions, wire) = {.format = WireFormat::kFp32};

  // Steps before the first of all, in which the ranks stay equal, >= 0: somebody else averages their gradients.
  TORCH_ARG(int64_t, warmup_steps) = 0;

  // Steps after the warm-up until the first fragment is exchanged, 1..sync_every. Without a value sync_every /
  // fragments. With 1, and one fragment, exchanges come when those of PyTorch's PeriodicModelAverager do.
  TORCH_ARG(std::optional<int64_t>, first_exchange) = std::nullopt;

 public:
  // Throws c10::ValueError naming an option that is out of range, or that another one makes void.
  void validate() const;

  // learning_rate(), momentum() and first_exchange() with what they are without a value.
  double effective_learning_rate() const;
  double effective_momentum() const;
  int64_t effective_first_exchange() const;

  // Whether ranks send their parameters as they are, not what they are away from the reference: in fp32 and without
  // momentum, where the mean of parameters is all that is needed. With a rate of 1 the reference is that mean then, bit
  // for bit.
  bool sends_parameters() const;

  // Elements of the largest of the fragments of so many elements, >= 0; the first ones are the largest.
  int64_t largest_fragment(int64_t numel) const;

  // The options as command lines and errors name them, with what they are without a value: first, with the kind kLocal,
  // all of this struct's own but first_exchange, which no command line has, then those of `wire` that have an effect.
  std::vector<hooks::NamedOption> named() const;

  // The fragment that is exchanged after so many steps since the warm-up, >= 1; none in most steps.
  std::optional<int64_t> fragment_due(int64_t local_step) const;
};

}  // namespace narrowcast
