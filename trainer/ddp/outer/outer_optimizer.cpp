#include <narrowcast/outer_optimizer.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <numeric>
#include <string>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <utility>

#include <narrowcast/consensus.h>
#include <narrowcast/hooks.h>
#include <narrowcast/network_errors.h>
#include <narrowcast/wire_format.h>
#include "hooks/table/hook_table.h"
#include "ops/comm/groups/broken_groups.h"
#include "trainer/base/files/hash.h"
#include "trainer/ddp/backends/group_backend.h"
#include "trainer/ddp/optimization/finite.h"
#include "trainer/ddp/outer/outer_arguments.h"
#include "trainer/ddp/outer/round_clock.h"
#include "trainer/ddp/quorum/quorum_rounds.h"
#include "trainer/ddp/sharding/shared_parameters.h"

namespace narrowcast {
namespace {

at::Tensor empty_floats(int64_t numel, at::Device device) {
  return at::empty({numel}, at::TensorOptions(at::kFloat).device(device));
}

}  // namespace

at::Tensor OuterOptimizer::Slice::memory() const {
  const at::Tensor whole = parameter.detach();
  return whole.as_strided({numel}, {1}, whole.storage_offset() + begin);
}

// Cuts the parameters into parts that are equal, or of which the first ones are longer by one element.
std::vector<OuterOptimizer::Fragment> OuterOptimizer::cut(const std::vector<at::Tensor>& parameters, int64_t count) {
  const int64_t elements = elements_of(parameters);
  std::vector<Fragment> fragments;
  auto parameter = parameters.begin();
  int64_t used = 0;  // Elements of that parameter.
  for (int64_t i = 0, begin = 0; i < count; ++i) {
    Fragment fragment{.begin = begin, .numel = elements / count + (i < elements % count ? 1 : 0)};
    for (int64_t left = fragment.numel; left > 0;) {
      const int64_t taken = std::min(left, parameter->numel() - used);
      if (taken > 0) {
        fragment.slices.push_back({*parameter, used, taken});
      }
      used += taken;
      left -= taken;
      if (used == parameter->numel()) {
        ++parameter;
        used = 0;
      }
    }
    begin += fragment.numel;
    fragments.push_back(std::move(fragment));
  }
  return fragments;
}

OuterOptimizer::OuterOptimizer(torch::optim::Optimizer& inner, ProcessGroupPtr group, const OuterOptions& options,
                               const std::vector<int64_t>& groups)
    : inner_(inner),
      group_(checked_group(std::move(group))),
      options_(agree_on_outer_options(
          inner, group_, [&] { return options; }, groups)),
      parameters_(outer_parameters_of(inner)),
      elements_(elements_of(parameters_)),
      fragments_(cut(parameters_, options_.fragments())) {
  make_memory();
  if (options_.quorum()) {
    quorum_ = std::make_unique<QuorumRounds>(QuorumRounds::Setup{
        .group = group_, .groups = groups, .options = options_, .elements = elements_, .device = reference_.device()});
  } else {
    make_exchange();
  }
  if (options_.sync_seconds()) {
    clock_ = std::make_unique<RoundClock>(group_, groups, options_);
  }
  if (options_.warmup_steps() == 0) {
    begin_rounds();
  }
}

void OuterOptimizer::make_exchange() {
  exchange_ = with_network_errors(group_->getRank(), "making the outer exchange", [&] {
    return hooks::create_comm_hook(
        hooks::kAnyFormatHook,
        {.process_group = group_, .wire = options_.wire(), .device = parameters_[0].device().type()});
  });
}

// If the last user of an engine is gone, the engine gives up its exchanges in flight. It is then unknown which messages
// are under way, and the group could not be used any more.
OuterOptimizer::~OuterOptimizer() {
  if (under_way_ && under_way_->future && std::uncaught_exceptions() == 0) {
    under_way_->future->wait();
  }
}

// Ranks with different parameters would each be pulled towards another reference.
void OuterOptimizer::check_equal_parameters() const {
  uint64_t hash = kHashStart;
  for (const at::Tensor& parameter : parameters_) {
    const at::Tensor bytes = Slice{parameter, 0, parameter.numel()}.memory().cpu();
    hash = hash_of_content({static_cast<const char*>(bytes.const_data_ptr()), bytes.nbytes()}, hash);
  }
  const char* const what =
      options_.warmup_steps() == 0
          ? "the hash of the parameters, with which local steps begin,"
          : "the hash of the parameters after outer_warmup, in whose steps gradients must be averaged "
            "over all ranks (is_warming_up),";
  check_equal_on_all_ranks(group_, {{what, c10::str(hash)}});
}

void OuterOptimizer::begin_rounds() {
  const at::NoGradGuard no_grad;
  check_equal_parameters();
  for (const Fragment& fragment : fragments_) {
    gather(fragment, part(reference_, fragment));
  }
  restart_clock();
}

// The exchange keeps residuals by parameter: here the fragments, each a part of the reference, are the parameters.
void OuterOptimizer::make_memory() {
  const at::Device device = parameters_[0].device();
  reference_ = empty_floats(elements_, device);
  sent_ = empty_floats(options_.largest_fragment(elements_), device);
  if (options_.effective_momentum() != 0) {
    momentum_ = at::zeros({elements_}, reference_.options());
  }
  for (const Fragment& fragment : fragments_) {
    names_.push_back({c10::str("fragment.", names_.size()), part(reference_, fragment)});
  }
}

at::Tensor OuterOptimizer::part(const at::Tensor& flat, const Fragment& fragment) const {
  return flat.narrow(0, fragment.begin, fragment.numel);
}

void OuterOptimizer::gather(const Fragment& fragment, const at::Tensor& flat) const {
  int64_t begin = 0;
  for (const Slice& slice : fragment.slices) {
    flat.narrow(0, begin, slice.numel).copy_(slice.memory());
    begin += slice.numel;
  }
}

void OuterOptimizer::scatter(const Fragment& fragment, double mix) const {
  int64_t begin = fragment.begin;
  for (const Slice& slice : fragment.slices) {
    const at::Tensor outer = reference_.narrow(0, begin, slice.numel);
    const at::Tensor own = slice.memory();
    if (mix == 0) {
      own.copy_(outer);
    } else {
      own.copy_(own.to(at::kFloat).mul(mix).add_(outer, 1 - mix));
    }
    begin += slice.numel;
  }
}

void OuterOptimizer::take_reference() const {
  const at::NoGradGuard no_grad;
  for (const Fragment& fragment : fragments_) {
    scatter(fragment, /*mix=*/0);
  }
}

bool OuterOptimizer::is_warming_up() const { return steps_ < options_.warmup_steps(); }

void OuterOptimizer::step() {
  for (const at::Tensor& parameter : parameters_) {
    sharding::check_is_not_shared(parameter, "OuterOptimizer", "a parameter");  // Ranks may share it by now.
  }
  inner_.step();
  count_step();
}

void OuterOptimizer::skip_step() { count_step(); }

void OuterOptimizer::count_step() {
  ++steps_;
  const int64_t local_step = steps_ - options_.warmup_steps();
  if (local_step <= 0 || (!clock_ && !quorum_)) {
    common_steps_ = steps_;
  }
  if (local_step == 0) {
    begin_rounds();
  }
  if (local_step <= 0) {
    return;
  }
  replicas_are_equal_ = group_->getSize() == 1;
  if (clock_) {
    if (!is_held_ && is_round_over()) end_round();
    return;
  }
  if (quorum_) {
    end_step_of_quorum();
    return;
  }
  if (under_way_ && under_way_->joined_at == local_step) {
    join();
  }
  if (const auto fragment = options_.fragment_due(local_step)) {
    issue(*fragment);
    under_way_->joined_at = local_step + options_.overlap_steps();
    if (options_.overlap_steps() == 0) {
      join();
    }
  }
}

// `factor`: by which this rank's difference counts in the mean; no value if all ranks count equally.
void OuterOptimizer::issue(int64_t index, std::optional<double> factor) {
  const at::NoGradGuard no_grad;
  const Fragment& fragment = fragments_[static_cast<size_t>(index)];
  const at::Tensor& parameter = names_[static_cast<size_t>(index)].tensor;
  const at::Tensor sent = sent_.narrow(0, 0, fragment.numel);
  const bool is_of_parameters = options_.sends_parameters() && !factor;
  gather(fragment, sent);
  if (!is_of_parameters) {
    sent.neg_().add_(parameter);
  }
  if (factor) {
    sent.mul_(*factor);
  }
  decay_residuals();
  c10d::GradBucket bucket(static_cast<size_t>(index), fragments_.size(), sent, {0},
                          {static_cast<size_t>(fragment.numel)}, {parameter.sizes()}, {parameter}, std::nullopt);
  under_way_ = Exchange{.fragment = index, .future = exchange_->runHook(bucket), .is_of_parameters = is_of_parameters};
  ++exchanges_;
}

// All residuals decay at each exchange of a fragment, so that between two exchanges of the same fragment they decay by
// the option's factor.
void OuterOptimizer::decay_residuals() {
  const double decay = options_.effective_error_decay();
  if (decay != 1) {
    exchange_->rescale_state(std::pow(decay, 1 / static_cast<double>(fragments_.size())));
  }
}

at::Tensor OuterOptimizer::wait_for_mean() {
  if (under_way_->future) {
    with_network_errors(group_->getRank(), c10::str("the outer exchange of fragment ", under_way_->fragment),
                        [&] { under_way_->future->waitAndThrow(); });
    under_way_->mean = exchange_->parseHookResult(under_way_->future->value());
    under_way_->future.reset();
  }
  return under_way_->mean;
}

// All ranks have the same mean, so they agree on whether it is lost.
void OuterOptimizer::join() {
  const at::NoGradGuard no_grad;
  wait_for_mean();
  const Exchange exchange = *std::exchange(under_way_, std::nullopt);
  const Fragment& fragment = fragments_[static_cast<size_t>(exchange.fragment)];
  if (all_finite(exchange.mean)) {
    take_outer_step(fragment, exchange);
    scatter(fragment, options_.mix());
    replicas_are_equal_ = replicas_are_equal_ || (fragments_.size() == 1 && options_.mix() == 0);
  } else {
    ++lost_exchanges_;
    scatter(fragment, /*mix=*/0);
    replicas_are_equal_ = replicas_are_equal_ || fragments_.size() == 1;
  }
}

void OuterOptimizer::take_outer_step(const Fragment& fragment, const Exchange& exchange) {
  const at::Tensor& mean = exchange.mean;
  const at::Tensor reference = part(reference_, fragment);
  const double rate = options_.effective_learning_rate();
  const double momentum = options_.effective_momentum();
  if (exchange.is_of_parameters) {
    if (rate == 1) {
      reference.copy_(mean);
    } else {
      reference.add_(mean.sub_(reference), rate);
    }
    return;
  }
  if (momentum != 0) {
    const at::Tensor velocity = part(momentum_, fragment);
    velocity.mul_(momentum).add_(mean);
    if (options_.optimizer() == OuterKind::kNesterov) {
      mean.add_(velocity, momentum);
    } else {
      mean.copy_(velocity);
    }
  }
  reference.sub_(mean, rate);
}

void OuterOptimizer::finish() {
  if (is_warming_up()) {
    return;
  }
  end_round();
  average_rest();
  if (under_way_) {
    join();
  }
  take_reference();
  replicas_are_equal_ = true;
}

// A GPU's host runs ahead: without the wait it would enqueue steps for longer than the round.
bool OuterOptimizer::is_round_over() const {
  if (reference_.is_cuda()) collectives::wait_for_results(group_);
  return clock_->is_over();
}

// Ranks of equal weight send what they would send without weights, so that they also get the same bits. A weight beside
// others is applied before encoding: then residuals need not be scaled when weights change.
void OuterOptimizer::end_round() {
  if (!clock_ || is_warming_up() || steps_are_common()) {
    return;
  }
  std::vector<double> steps(static_cast<size_t>(group_->getSize()));
  const auto rank = static_cast<size_t>(group_->getRank());
  steps[rank] = static_cast<double>(steps_ - common_steps_);
  steps = all_reduce_sum(group_, steps);
  const auto [fewest, most] = std::ranges::minmax(steps);
  const double all = std::accumulate(steps.begin(), steps.end(), 0.0);
  const double factor = steps[rank] * static_cast<double>(steps.size()) / all;
  issue(/*fragment=*/0, fewest == most ? std::nullopt : std::optional(factor));
  join();
  last_round_ = RoundSteps{.fewest = static_cast<int64_t>(fewest), .most = static_cast<int64_t>(most)};
  common_steps_ += last_round_->most;
  steps_ = common_steps_;
  restart_clock();
}

void OuterOptimizer::restart_clock() {
  if (clock_ && steps_are_common()) clock_->restart();
}

// Fragments are joined in the order in which they are issued, and at most one is under way.
std::optional<int64_t> OuterOptimizer::staleness() const {
  if (clock_ || quorum_) {
    return exchanges_ == 0 ? std::nullopt : std::optional(steps_ - common_steps_);
  }
  const int64_t local_step = steps_ - options_.warmup_steps();
  bool is_joined = !under_way_;
  for (int64_t issued = local_step; issued > 0; --issued) {
    if (options_.fragment_due(issued)) {
      if (is_joined) {
        return local_step - issued;
      }
      is_joined = true;
    }
  }
  return std::nullopt;
}

int64_t OuterOptimizer::payload_bytes_sent() const {
  return quorum_ ? quorum_->bytes_sent() : exchange_->payload_bytes_sent();
}

}  // namespace narrowcast
