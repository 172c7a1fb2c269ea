#include "hooks/power_sgd/power_sgd_states.h"

#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include <narrowcast/errors.h>

namespace narrowcast::hooks {
namespace {

using collectives::CompressionPlan;
using collectives::LowRankState;
using collectives::MatrixBatch;

constexpr const char* kPadding = "padding.";
constexpr const char* kFactorQ = "q.";
constexpr const char* kFactorP = "p.";

// Calls body(batch, index in the batch, place of the member, index of the matrix).
template <class Body>
void for_matrices(const CompressionPlan& plan, const Body& body) {
  size_t matrix = 0;
  for (const MatrixBatch& batch : plan.batches) {
    for (int64_t i = 0; i < batch.count(); ++i) {
      body(batch, i, batch.members[i], matrix++);
    }
  }
}

at::Tensor factor_part(const MatrixBatch& batch, const LowRankState& state, int64_t i) {
  return state.part_of(state.factor, batch)[i];
}

at::Tensor place_of(size_t index, const ParameterRange& parameter) {
  return at::tensor({static_cast<int64_t>(index), parameter.range.begin}, at::kLong);
}

bool is_floating(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kDouble;
}

at::Tensor checked_residual(const HookState& state, const std::string& name, int64_t numel) {
  const at::Tensor residual = state.at(name).to(at::kCPU);
  NARROWCAST_CHECK_INPUT(is_floating(residual) && residual.dim() == 1 && residual.numel() == numel,
                         "the hook's state '", name, "' is ", residual.scalar_type(), " ", residual.sizes(),
                         ", but should be ", numel, " floating-point numbers");
  return residual;
}

}  // namespace

PowerSgdStates::BucketState PowerSgdStates::state_of(const c10d::GradBucket& bucket, const ParameterRanges& ranges,
                                                     at::ScalarType dtype,
                                                     const std::function<CompressionPlan()>& plan) {
  const size_t index = bucket.getIndex();
  const at::TensorOptions numbers = at::TensorOptions(dtype).device(bucket.getBuffer().device());
  const auto fits = [&](const Entry& entry) {
    return entry.ranges == ranges && entry.plan.numel == bucket.getBuffer().numel() &&
           entry.numbers.dtype() == numbers.dtype() && entry.numbers.device() == numbers.device();
  };
  auto found = entries_.find(index);
  if (found != entries_.end() && !fits(found->second)) {
    // Buckets before this one already have their new ranges, and may be in flight.
    std::for_each(found, entries_.end(), [&](const auto& entry) { retire(entry.second); });
    entries_.erase(found, entries_.end());
    found = entries_.end();
  }
  if (found == entries_.end()) {
    Entry entry{ranges, plan(), numbers, nullptr};
    take_up(entry, index);
    entry.parameters = weak_references(bucket.getParameters());
    found = entries_.emplace(index, std::move(entry)).first;
  }
  if (bucket.isLast()) {
    entries_.erase(entries_.upper_bound(index), entries_.end());
    by_parameter_.clear();  // Removes parameters that are no longer in any bucket.
    by_bucket_.clear();
  }
  return {found->second.plan, found->second.state};
}

void PowerSgdStates::retire(const Entry& old) {
  for (const ParameterRange& parameter : old.ranges) {
    Kept& kept = by_parameter_[parameter.parameter];
    kept = {};
    if (old.state->residual.defined()) {
      kept.residual = old.state->residual.narrow(0, parameter.range.begin, parameter.range.numel);
    }
  }
  if (options_.batched || old.ranges.empty() || !old.state->factor.defined()) {
    return;
  }
  for_matrices(old.plan, [&](const MatrixBatch& batch, int64_t i, size_t member, size_t matrix) {
    if (old.state->known[matrix]) {
      by_parameter_[old.ranges[member].parameter].factor = {factor_part(batch, *old.state, i), old.state->is_p};
    }
  });
}

void PowerSgdStates::take_up(Entry& entry, size_t index) {
  entry.state = std::make_shared<LowRankState>();
  LowRankState& state = *entry.state;
  state.is_p = options_.alternates;
  const auto bucket = by_bucket_.find(index);
  const bool is_known_bucket = bucket != by_bucket_.end() && bucket->second.ranges == entry.ranges;
  if (options_.keeps_residual) {
    state.residual = at::zeros({entry.plan.array_numel}, entry.numbers);
  }
  for (const ParameterRange& parameter : entry.ranges) {
    const auto kept = by_parameter_.find(parameter.parameter);
    if (kept == by_parameter_.end()) continue;
    if (state.residual.defined() && kept->second.residual.defined()) {
      state.residual.narrow(0, parameter.range.begin, parameter.range.numel).copy_(kept->second.residual);
    }
    state.is_p = kept->second.factor.numbers.defined() ? kept->second.factor.is_p : state.is_p;
  }
  if (is_known_bucket && bucket->second.factor.numbers.defined()) {
    state.is_p = bucket->second.factor.is_p;
  }
  state.factor = at::zeros({state.is_p ? entry.plan.p_numel : entry.plan.q_numel}, entry.numbers);
  for_matrices(entry.plan, [&](const MatrixBatch& batch, int64_t i, size_t member, size_t /*matrix*/) {
    Factor known;
    if (is_known_bucket) {
      known = bucket->second.factor;
    } else if (!options_.batched && !entry.ranges.empty()) {
      const auto kept = by_parameter_.find(entry.ranges[member].parameter);
      known = kept == by_parameter_.end() ? Factor{} : kept->second.factor;
    }
    const at::Tensor part = factor_part(batch, state, i);
    const bool is_known = known.numbers.defined() && known.is_p == state.is_p && known.numbers.sizes() == part.sizes();
    state.known.push_back(is_known);
    if (is_known) part.copy_(known.numbers);
  });
  if (is_known_bucket && state.residual.defined() && bucket->second.padding.defined()) {
    state.residual.narrow(0, entry.plan.numel, bucket->second.padding.numel()).copy_(bucket->second.padding);
  }
  for (const ParameterRange& parameter : entry.ranges) {
    by_parameter_.erase(parameter.parameter);
  }
}

HookState PowerSgdStates::state(const std::vector<NamedParameter>& parameters) const {
  const ParameterNames names(parameters);
  HookState state;
  for (const auto& [index, entry] : entries_) {
    const LowRankState& kept = *entry.state;
    for (const ParameterRange& parameter : entry.ranges) {
      const std::string& name = names.at(parameter.parameter);
      if (kept.residual.defined()) {
        state[kResidual + name] = kept.residual.narrow(0, parameter.range.begin, parameter.range.numel);
      }
      if (options_.batched) {
        state[kPlace + name] = place_of(index, parameter);
      }
    }
    if (options_.batched && kept.residual.defined()) {
      const int64_t numel = entry.plan.numel;
      state[kPadding + std::to_string(index)] = kept.residual.narrow(0, numel, entry.plan.array_numel - numel);
    }
    for_matrices(entry.plan, [&, index = index](const MatrixBatch& batch, int64_t i, size_t member, size_t matrix) {
      if (kept.factor.defined() && kept.known[matrix] && !entry.ranges.empty()) {
        const std::string owner = options_.batched ? std::to_string(index) : names.at(entry.ranges[member].parameter);
        state[(kept.is_p ? kFactorP : kFactorQ) + owner] = factor_part(batch, kept, i);
      }
    });
  }
  add_waiting(names, state);
  return state;
}

// Adds loaded state that no bucket has taken yet.
void PowerSgdStates::add_waiting(const ParameterNames& names, HookState& state) const {
  const auto add_factor = [&](const Factor& factor, const std::string& owner) {
    if (factor.numbers.defined()) state[(factor.is_p ? kFactorP : kFactorQ) + owner] = factor.numbers;
  };
  for (const auto& [parameter, kept] : by_parameter_) {
    if (kept.residual.defined()) state[kResidual + names.at(parameter)] = kept.residual;
    add_factor(kept.factor, names.at(parameter));
  }
  for (const auto& [index, bucket] : by_bucket_) {
    if (entries_.contains(index)) continue;
    for (const ParameterRange& parameter : bucket.ranges) {
      state[kPlace + names.at(parameter.parameter)] = place_of(index, parameter);
    }
    if (bucket.padding.defined()) state[kPadding + std::to_string(index)] = bucket.padding;
    add_factor(bucket.factor, std::to_string(index));
  }
}

void PowerSgdStates::load_state(const FormerRanks& saved, const std::vector<NamedParameter>& parameters) {
  std::vector<std::string> of_parameters{kResidual, kPlace};
  if (!options_.batched) of_parameters.insert(of_parameters.end(), {kFactorQ, kFactorP});
  check_saved_parameters(saved, parameters, of_parameters);
  entries_.clear();
  by_parameter_.clear();
  by_bucket_.clear();
  for (const NamedParameter& parameter : parameters) {
    if (options_.batched) {
      load_bucket(saved.own(), parameter);
    } else {
      load_parameter(saved.own(), parameter);
    }
    for (const HookState& state : saved.states) {
      if (options_.keeps_residual && state.contains(kResidual + parameter.name)) {
        const at::Tensor residual = checked_residual(state, kResidual + parameter.name, numbers_in(parameter.tensor));
        add_residual(by_parameter_[parameter.tensor.unsafeGetTensorImpl()].residual,
                     residual.mul(residual_share(options_.world_size, saved.world_size)));
      }
    }
  }
  for (auto& [index, bucket] : by_bucket_) {
    if (saved.states.empty() || saved.world_size != options_.world_size) {
      bucket.padding.reset();  // It belongs to other ranks.
    }
  }
  check_buckets();
}

void PowerSgdStates::check_buckets() const {
  for (const auto& [index, bucket] : by_bucket_) {
    const auto gap = gap_in(bucket.ranges);
    NARROWCAST_CHECK_INPUT(!gap, "the hook's state of bucket ", index, " leaves a gap at ", gap.value_or(0));
    const int64_t numel = bucket.ranges.back().range.begin + bucket.ranges.back().range.numel;
    const CompressionPlan plan = collectives::plan_of_square(numel, options_.rank);
    const auto& factor = bucket.factor.numbers;
    NARROWCAST_CHECK_INPUT(!bucket.padding.defined() || bucket.padding.numel() == plan.array_numel - numel,
                           "the hook's state '", kPadding, index, "' has ", bucket.padding.numel(),
                           " numbers instead of ", plan.array_numel - numel);
    NARROWCAST_CHECK_INPUT(!factor.defined() || factor.numel() == plan.q_numel, "the hook's factor of bucket ", index,
                           " is ", factor.sizes(), ", which does not fit its ", numel, " elements");
  }
}

PowerSgdStates::Factor PowerSgdStates::factor_of(const HookState& state, const std::string& name) const {
  for (const bool is_p : {false, true}) {
    const auto found = state.find((is_p ? kFactorP : kFactorQ) + name);
    if (found != state.end()) {
      const at::Tensor& factor = found->second;
      NARROWCAST_CHECK_INPUT(is_floating(factor) && factor.dim() == 2, "the hook's state '", found->first, "' is ",
                             factor.scalar_type(), " ", factor.sizes(), ", but should be a matrix");
      NARROWCAST_CHECK_INPUT(!is_p || options_.alternates, "the hook's state '", found->first,
                             "' belongs to a hook with power_sgd_alternate, but this hook does not alternate");
      return {factor.to(at::kCPU).clone(), is_p};
    }
  }
  return {};
}

void PowerSgdStates::load_parameter(const HookState& state, const NamedParameter& parameter) {
  const Factor factor = factor_of(state, parameter.name);
  if (!factor.numbers.defined()) {
    return;
  }
  const at::Tensor& tensor = parameter.tensor;
  NARROWCAST_CHECK_INPUT(tensor.dim() > 0 && tensor.numel() > 0, "the hook's state has a factor of '", parameter.name,
                         "', which is not a matrix");
  const int64_t rows = real_sizes(tensor)[0];
  const int64_t columns = numbers_in(tensor) / rows;
  const int64_t rank = std::min({rows, columns, options_.rank});
  NARROWCAST_CHECK_INPUT(factor.numbers.size(0) == (factor.is_p ? rows : columns) && factor.numbers.size(1) == rank,
                         "the hook's factor of '", parameter.name, "' is ", factor.numbers.sizes(),
                         ", which does not fit a matrix of ", rows, " x ", columns, " in rank ", rank);
  by_parameter_[tensor.unsafeGetTensorImpl()].factor = factor;
}

void PowerSgdStates::load_bucket(const HookState& state, const NamedParameter& parameter) {
  if (!state.contains(kPlace + parameter.name)) {
    return;
  }
  const std::vector<int64_t> place = place_in(state, parameter.name, 2, 2);
  const auto index = static_cast<size_t>(place[0]);
  KeptBucket& bucket = by_bucket_[index];
  insert_parameter(bucket.ranges, parameter, place[1]);
  bucket.factor = factor_of(state, std::to_string(index));
  const auto padding = state.find(kPadding + std::to_string(index));
  if (padding != state.end()) {
    bucket.padding = checked_residual(state, padding->first, padding->second.numel()).clone();
  }
}

void PowerSgdStates::rescale(double factor) {
  for (const auto& [index, entry] : entries_) rescale_residual(entry.state->residual, factor);
  for (const auto& [parameter, kept] : by_parameter_) rescale_residual(kept.residual, factor);
  for (const auto& [index, kept] : by_bucket_) rescale_residual(kept.padding, factor);
}

}  // namespace narrowcast::hooks
