// Options of OuterOptimizer.
#pragma once

#include <torch/arg.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <narrowcast/export.h>
#include <narrowcast/hook_options.h>

namespace NARROWCAST_EXPORT narrowcast {

// The outer step, which changes the reference x. D is the mean over ranks of (x - parameters of the rank): the distance
// that they moved, with the sign of a gradient. kSgd and kNesterov are torch::optim::SGD.
enum class OuterKind {
  kAverage,   // x - D: the ranks' mean. Periodic averaging, post-local SGD
  kSgd,       // v <- momentum v + D; x - learning_rate v
  kNesterov,  // v <- momentum v + D; x - learning_rate (D + momentum v). DiLoCo (arXiv 2311.08105)
};

// "average", "sgd" or "nesterov". Throws c10::ValueError for a number that is not an OuterKind.
std::string_view to_string(OuterKind kind);

// The inverse of to_string. Throws c10::ValueError for other names.
OuterKind parse_outer_kind(std::string_view name);

// Set with chained calls: OuterOptions().sync_every(30).optimizer(OuterKind::kNesterov). All ranks must pass the same;
// OuterOptimizer checks that.
struct OuterOptions {
  // Steps between two exchanges of the same parameter, >= 1 and a multiple of `fragments`.
  TORCH_ARG(int64_t, sync_every) = 1;

  // Instead of sync_every: seconds from the end of one exchange to the beginning of the next, > 0 and finite. Each rank
  // takes as many steps in them as it can, at least one, and the mean over ranks is weighted by steps. Clocks decide
  // here, so two trainings have different results. Excludes sync_every, fragments, overlap_steps, mix, first_exchange.
  TORCH_ARG(std::optional<double>, sync_seconds) = std::nullopt;

  // With sync_seconds: returns seconds since any fixed time, and never less than before. By default, the steady clock.
  // For tests and simulations: ranks may have different clocks.
  TORCH_ARG(std::function<double()>, clock) = {};

  // Slow groups of ranks do not stop the others: an outer step is taken once this number of groups have sent their
  // differences, and grace_seconds have passed since, or all groups that took part in the last outer step have sent,
  // too. A group that is late keeps its difference for its next outer step. At least 1, at most the number of groups
  // (those of CommHook::groups; each rank is one by default). Excludes sync_seconds, fragments, overlap_steps, mix,
  // levels, node_size and the link. `wire().connections` is the number of TCP connections between two groups.
  TORCH_ARG(std::optional<int64_t>, quorum) = std::nullopt;

  // With a quorum below the number of groups: >= 0 and below the time limit of the group's collectives; the default is
  // 0.
  TORCH_ARG(std::optional<double>, grace_seconds) = std::nullopt;

  // The outer step that is taken with the mean.
  TORCH_ARG(OuterKind, optimizer) = OuterKind::kAverage;

  // > 0. The default is 1, and 0.7 with nesterov, the best value found by DiLoCo. Must not be set with average.
  TORCH_ARG(std::optional<double>, learning_rate) = std::nullopt;

  // 0 <= momentum < 1, with nesterov > 0. The default is 0, and 0.9 with nesterov. Must not be set with average. Must
  // be 0 in sparse formats, which therefore exclude nesterov.
  TORCH_ARG(std::optional<double>, momentum) = std::nullopt;

  // Number of equal parts of the parameters, >= 1. They are exchanged one after the other, sync_every / fragments steps
  // apart, which lowers the peak load of the network (Streaming DiLoCo, arXiv 2501.18512).
  TORCH_ARG(int64_t, fragments) = 1;

  // Steps that a rank takes while a fragment is exchanged; with 0 it waits for the mean at once. >= 0 and < sync_every
  // / fragments, so that at most one fragment is under way.
  TORCH_ARG(int64_t, overlap_steps) = 0;

  // Share of its parameters that a rank keeps when an exchange ends: mix * own + (1 - mix) * reference, in 0..1. With 1
  // it takes the reference only in finish and after a mean that is not finite. Must be 0 in sparse formats.
  TORCH_ARG(double, mix) = 0;

  // Wire options of the differences, as with the hook quantized_allreduce: format, error feedback over exchanges,
  // levels if ranks share a node. exempt_one_dimensional and auto_bits have no effect and are refused. With fp32, which
  // does not round, options about rounding are refused as well; sparse formats need error feedback.
  TORCH_ARG(hooks::WireOptions, wire) = {.format = WireFormat::kFp32};

  // 0 < error_decay <= 1, with wire().error_feedback: a residual is multiplied by it before each exchange of its
  // fragment. The default is 0.95 in sparse formats, as in SparseLoCo (arXiv 2508.15706), else 1. There it takes the
  // place of momentum: an element that is not sent is a decaying sum of its differences until it is.
  TORCH_ARG(std::optional<double>, error_decay) = std::nullopt;

  // Number of first steps in which the ranks stay equal, >= 0; the caller averages their gradients.
  TORCH_ARG(int64_t, warmup_steps) = 0;

  // Steps after the warm-up until the first fragment is exchanged, 1..sync_every; the default is sync_every /
  // fragments. With 1 and one fragment, exchanges happen at the same steps as with PyTorch's PeriodicModelAverager.
  TORCH_ARG(std::optional<int64_t>, first_exchange) = std::nullopt;

 public:
  // Throws c10::ValueError naming an option that is out of range, or that another option makes ineffective.
  void validate() const;

  // learning_rate(), momentum(), error_decay() and first_exchange() with their defaults filled in.
  double effective_learning_rate() const;
  double effective_momentum() const;
  double effective_error_decay() const;
  int64_t effective_first_exchange() const;

  // Whether ranks send their parameters instead of differences from the reference. They do in fp32 without momentum,
  // where the mean of the parameters is all that the outer step needs. With a rate of 1 the reference then is that
  // mean, bit for bit.
  bool sends_parameters() const;

  // Number of elements of the largest fragment of `numel` elements, >= 0; the first fragments are the largest.
  int64_t largest_fragment(int64_t numel) const;

  // The options as command lines and errors name them, with defaults filled in. The options of this struct come first,
  // with the kind kLocal; first_exchange and clock are left out, as command lines lack them. Then the options of `wire`
  // follow that have an effect. With sync_seconds, sync_every has no value.
  std::vector<hooks::NamedOption> named() const;

  // Sets the option of that name, one of those of named() or "first_exchange", as hooks::set_option does.
  void set(const std::string& name, const hooks::OptionValue& value);

  // The fragment that is exchanged after `local_step` (>= 1) steps since the warm-up; no value in most steps, and never
  // with sync_seconds.
  std::optional<int64_t> fragment_due(int64_t local_step) const;

 private:
  void set_of_exchange(const std::string& name, const hooks::OptionValue& value);
};

}  // namespace narrowcast
