#include "hooks/quantized/error_feedback.h"

#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "hooks/row/levels.h"
#include "ops/collectives/all_reduce/codec/codec.h"

#include <narrowcast/errors.h>

namespace narrowcast::hooks {
namespace {

using collectives::ElementRange;

constexpr const char* kMeanResidual = "mean_residual.";
// For a parameter that has been in no bucket since residuals were shared out.
constexpr const char* kShared = "shared.";

// The intersection of two ranges of a bucket.
ElementRange overlap(const ElementRange& a, const ElementRange& b) {
  const int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max<int64_t>(0, std::min(a.begin + a.numel, b.begin + b.numel) - begin)};
}

// A parameter's residuals as one rank left them.
struct Saved {
  int64_t bucket = 0;
  int64_t begin = 0;       // in the bucket
  int64_t mean_begin = 0;  // in the parameter, as own_begin
  int64_t own_begin = 0;
  at::Tensor own;
  at::Tensor mean;  // empty if this rank sends no part of its mean
};

at::Tensor checked(const HookState& state, const std::string& name, at::ScalarType dtype) {
  const at::Tensor& tensor = state.at(name);
  NARROWCAST_CHECK_INPUT(tensor.scalar_type() == dtype && tensor.dim() == 1, "the hook's state '", name, "' must be ",
                         dtype, " with 1 dimension, but is ", tensor.scalar_type(), " with ", tensor.dim(),
                         " dimensions");
  return tensor;
}

// Empty for a parameter that was in no bucket.
std::optional<Saved> saved_of(const HookState& state, const NamedParameter& parameter) {
  const std::string& name = parameter.name;
  if (state.count(kPlace + name) == 0 || state.count(kResidual + name) == 0) {
    return std::nullopt;
  }
  checked(state, kPlace + name, at::kLong);
  const std::vector<int64_t> place = place_in(state, name, 3, 4);
  Saved saved = {.bucket = place[0],
                 .begin = place[1],
                 .mean_begin = place[2],
                 .own_begin = place.size() == 4 ? place[3] : 0,
                 .own = checked(state, kResidual + name, at::kFloat),
                 .mean = at::zeros({0}, at::kFloat)};
  if (state.count(kMeanResidual + name) > 0) {
    saved.mean = checked(state, kMeanResidual + name, at::kFloat);
  }
  const int64_t numel = numbers_in(parameter.tensor);
  NARROWCAST_CHECK_INPUT((place.size() == 4 || saved.own.numel() == numel) && saved.own.numel() <= numel &&
                             saved.own_begin <= numel - saved.own.numel(),
                         "the hook's residuals of '", name, "' have ", saved.own.numel(),
                         " numbers, but the parameter has ", numel);
  NARROWCAST_CHECK_INPUT(saved.mean.numel() <= numel && saved.mean_begin <= numel - saved.mean.numel(),
                         "the hook's residuals of the mean of '", name, "' begin at ", saved.mean_begin, " and have ",
                         saved.mean.numel(), " numbers, but the parameter has ", numel);
  return saved;
}

// Empty for a parameter without a shared residual.
std::optional<at::Tensor> shared_of(const HookState& state, const NamedParameter& parameter) {
  if (state.count(kShared + parameter.name) == 0) {
    return std::nullopt;
  }
  const at::Tensor shared = checked(state, kShared + parameter.name, at::kFloat);
  NARROWCAST_CHECK_INPUT(shared.numel() == numbers_in(parameter.tensor), "the hook's state '", kShared, parameter.name,
                         "' has ", shared.numel(), " numbers, but the parameter has ", numbers_in(parameter.tensor));
  return shared;
}

// The weight of a node's mean's residual when it is added to one rank's own gradients.
double own_weight(const node::NodeLayout& layout) {
  return static_cast<double>(layout.world_size()) / static_cast<double>(layout.nodes());
}

struct SavedBucket {
  ParameterRanges ranges;
  std::unordered_map<const void*, Saved> saved;  // By parameter.
};

// The elements of `part` in `residual`, the residual of the range `whole` of the same bucket.
at::Tensor part_of_residual(const at::Tensor& residual, const ElementRange& whole, const ElementRange& part) {
  return part.numel == 0 ? residual.narrow(0, 0, 0) : residual.narrow(0, part.begin - whole.begin, part.numel);
}

std::map<size_t, SavedBucket> by_bucket(const HookState& state, const std::vector<NamedParameter>& parameters) {
  std::map<size_t, SavedBucket> buckets;
  for (const NamedParameter& parameter : parameters) {
    if (const auto saved = saved_of(state, parameter)) {
      SavedBucket& bucket = buckets[static_cast<size_t>(saved->bucket)];
      insert_parameter(bucket.ranges, parameter, saved->begin);
      bucket.saved.emplace(parameter.tensor.unsafeGetTensorImpl(), *saved);
    }
  }
  for (const auto& [index, bucket] : buckets) {
    const auto gap = gap_in(bucket.ranges);
    NARROWCAST_CHECK_INPUT(!gap, "the hook's residuals of bucket ", index, " leave a gap at ", gap.value_or(0));
  }
  return buckets;
}

}  // namespace

collectives::Residuals ErrorFeedback::residuals(const c10d::GradBucket& bucket, const ParameterRanges& ranges) {
  const size_t index = bucket.getIndex();
  const int64_t numel = bucket.getBuffer().numel();
  const at::Device device = bucket.getBuffer().device();
  auto found = entries_.find(index);
  if (found != entries_.end() &&
      (found->second.ranges != ranges || found->second.numel != numel || found->second.own.device() != device)) {
    retire_from(index);
    found = entries_.end();
  }
  if (found == entries_.end()) {
    retire_holders_of(ranges);
    found = entries_.emplace(index, make_entry(numel, ranges, device)).first;
    found->second.parameters = weak_references(bucket.getParameters());
  }
  has_begun_pass_ = has_begun_pass_ || index == 0;
  if (bucket.isLast() && has_begun_pass_) {
    by_parameter_.clear();  // The rest belongs to parameters that are in no bucket any more.
  }
  Entry& entry = found->second;
  return {entry.own.mutable_data_ptr<float>(),
          entry.mean.mutable_data_ptr<float>(),
          {entry.own, entry.mean},
          carried_of(entry)};
}

// On a GPU the host waits for this result, in the step after buckets are rebuilt.
bool ErrorFeedback::has_arrived(const Entry& entry) { return entry.is_given && !entry.carried.any().item<bool>(); }

at::Tensor ErrorFeedback::carried_of(Entry& entry) {
  if (has_arrived(entry)) {
    entry.carried.reset();
  }
  entry.is_given = entry.carried.defined();
  return entry.carried;
}

// Buckets before `index` already have their new ranges, and may be in flight.
void ErrorFeedback::retire_from(size_t index) {
  const auto first = entries_.lower_bound(index);
  for (auto entry = first; entry != entries_.end(); ++entry) {
    retire(entry->second);
  }
  entries_.erase(first, entries_.end());
}

// A hook that does not get every bucket may hold a parameter from a bucket that no longer exists.
void ErrorFeedback::retire_holders_of(const ParameterRanges& ranges) {
  std::unordered_set<const void*> parameters;
  for (const ParameterRange& parameter : ranges) {
    parameters.insert(parameter.parameter);
  }
  std::erase_if(entries_, [&](const auto& entry) {
    const auto& held = entry.second.ranges;
    const bool holds = std::any_of(held.begin(), held.end(), [&](const ParameterRange& parameter) {
      return parameters.contains(parameter.parameter);
    });
    if (holds) {
      retire(entry.second);
    }
    return holds;
  });
}

// A part's residual as elements of the bucket. If the part is a range of the bucket this is the residual itself. Else
// it is the whole bucket, with zeros between the part's elements.
ErrorFeedback::Held ErrorFeedback::in_bucket(const Entry& entry, const at::Tensor& residual, const ElementRange& part) {
  if (entry.order.is_identity()) {
    return {residual, part};
  }
  const at::Tensor all = at::zeros({entry.numel}, residual.options());
  entry.order.add(residual, 1, part, all);
  return {all, {0, entry.numel}};
}

// The inverse of in_bucket.
void ErrorFeedback::take_from_bucket(const Entry& entry, const Held& held, const ElementRange& part,
                                     const at::Tensor& residual) {
  if (!entry.order.is_identity()) {
    residual.copy_(entry.order.take(held.numbers, part));
  }
}

void ErrorFeedback::retire(const Entry& old) {
  at::Tensor all = old.own;
  if (!sends_all() || !old.order.is_identity()) {
    all = old.carried.defined() ? old.carried : at::zeros({old.numel}, old.own.options());
    old.order.add(old.own, own_weight(layout_), old.parts.own, all);
  }
  old.order.add(old.mean, static_cast<double>(layout_.world_size()), old.parts.mean, all);
  for (const ParameterRange& parameter : old.ranges) {
    by_parameter_[parameter.parameter] = all.narrow(0, parameter.range.begin, parameter.range.numel);
  }
}

ErrorFeedback::Entry ErrorFeedback::make_entry(int64_t numel, const ParameterRanges& ranges, at::Device device) {
  const auto parts = collectives::sent_parts(layout_, rank_, numel);
  const auto options = at::TensorOptions(at::kFloat).device(device);
  Entry entry{.ranges = ranges,
              .numel = numel,
              .order = collectives::ElementOrder::of(format_, numel),
              .parts = parts,
              .own = at::zeros({parts.own.numel}, options),
              .mean = at::zeros({parts.mean.numel}, options),
              .carried = {}};
  at::Tensor all;
  for (const ParameterRange& parameter : ranges) {
    const auto old = by_parameter_.find(parameter.parameter);
    if (old != by_parameter_.end() && old->second.numel() == parameter.range.numel) {
      if (!all.defined()) {
        all = at::zeros({numel}, options);
      }
      all.narrow(0, parameter.range.begin, parameter.range.numel).copy_(old->second);
      by_parameter_.erase(old);
    }
  }
  if (all.defined()) {
    (sends_all() ? entry.own : entry.carried) = sends_all() ? entry.order.take(all, parts.own) : all;
  }
  return entry;
}

void ErrorFeedback::rescale(double factor) {
  for (const auto& [index, entry] : entries_) {
    for (const at::Tensor& residual : {entry.own, entry.mean, entry.carried}) rescale_residual(residual, factor);
  }
  for (const auto& [parameter, residual] : by_parameter_) rescale_residual(residual, factor);
}

HookState ErrorFeedback::state(const std::vector<NamedParameter>& parameters) const {
  const ParameterNames names(parameters);
  HookState state;
  for (const auto& [index, entry] : entries_) {
    const Held all_own = in_bucket(entry, entry.own, entry.parts.own);
    const Held all_means = in_bucket(entry, entry.mean, entry.parts.mean);
    for (const ParameterRange& parameter : entry.ranges) {
      const std::string& name = names.at(parameter.parameter);
      const ElementRange& range = parameter.range;
      const ElementRange own = overlap(range, all_own.range);
      const ElementRange mean = overlap(range, all_means.range);
      state[kResidual + name] = part_of_residual(all_own.numbers, all_own.range, own);
      if (mean.numel > 0) {
        state[kMeanResidual + name] = part_of_residual(all_means.numbers, all_means.range, mean);
      }
      const int64_t mean_begin = mean.numel > 0 ? mean.begin - range.begin : 0;
      const int64_t own_begin = own.numel > 0 ? own.begin - range.begin : 0;
      std::vector<int64_t> place{static_cast<int64_t>(index), range.begin, mean_begin};
      if (!sends_all()) {
        place.push_back(own_begin);
      }
      state[kPlace + name] = at::tensor(place, at::kLong);
    }
  }
  for (const auto& [index, entry] : entries_) {
    const bool carries = entry.carried.defined() && !has_arrived(entry);
    for (const ParameterRange& parameter : carries ? entry.ranges : ParameterRanges()) {
      const at::Tensor carried = entry.carried.narrow(0, parameter.range.begin, parameter.range.numel);
      state[kShared + names.at(parameter.parameter)] = carried;
    }
  }
  for (const auto& [parameter, residual] : by_parameter_) {
    state[kShared + names.at(parameter)] = residual;
  }
  add_nodes(state, layout_);
  return state;
}

void ErrorFeedback::load_state(const FormerRanks& saved, const std::vector<NamedParameter>& parameters) {
  check_saved_parameters(saved, parameters, {kResidual, kMeanResidual, kPlace, kShared});
  entries_.clear();
  by_parameter_.clear();
  has_begun_pass_ = false;
  if (!saved.states.empty() && saved_nodes(saved) == layout_) {
    load_own(saved.own(), parameters);
  } else {
    share_out(saved, parameters);
  }
}

// Restores every bucket exactly as it was.
void ErrorFeedback::load_own(const HookState& state, const std::vector<NamedParameter>& parameters) {
  for (const NamedParameter& parameter : parameters) {
    if (const auto shared = shared_of(state, parameter)) {
      by_parameter_.emplace(parameter.tensor.unsafeGetTensorImpl(), shared->clone());
    }
  }
  for (const auto& [index, bucket] : by_bucket(state, parameters)) {
    const ElementRange& last = bucket.ranges.back().range;
    Entry entry = make_entry(last.begin + last.numel, bucket.ranges, parameters.at(0).tensor.device());
    const Held all_own = in_bucket(entry, entry.own, entry.parts.own);
    const Held all_means = in_bucket(entry, entry.mean, entry.parts.mean);
    for (const ParameterRange& parameter : bucket.ranges) {
      const int64_t begin = parameter.range.begin;
      const Saved& saved = bucket.saved.at(parameter.parameter);
      const ElementRange own = {begin + saved.own_begin, saved.own.numel()};
      const ElementRange mean = {begin + saved.mean_begin, saved.mean.numel()};
      NARROWCAST_CHECK_INPUT(
          overlap(mean, all_means.range).numel == mean.numel && overlap(own, all_own.range).numel == own.numel,
          "the hook's residuals of bucket ", index, " belong to another rank");
      if (own.numel > 0) {
        part_of_residual(all_own.numbers, all_own.range, own).copy_(saved.own);
      }
      if (mean.numel > 0) {
        part_of_residual(all_means.numbers, all_means.range, mean).copy_(saved.mean);
      }
    }
    take_from_bucket(entry, all_own, entry.parts.own, entry.own);
    take_from_bucket(entry, all_means, entry.parts.mean, entry.mean);
    entries_.emplace(index, std::move(entry));
  }
}

// Later means lack the sum over nodes of the nodes' own residuals, divided by the number of nodes, plus the residual of
// the mean.
void ErrorFeedback::share_out(const FormerRanks& saved, const std::vector<NamedParameter>& parameters) {
  const node::NodeLayout former_layout = saved_nodes(saved);
  const double share = residual_share(layout_.world_size(), saved.world_size);
  for (const HookState& state : saved.states) {
    for (const NamedParameter& parameter : parameters) {
      const auto former = saved_of(state, parameter);
      const auto shared = shared_of(state, parameter);
      if (!former && !shared) {
        continue;
      }
      at::Tensor whole = shared ? shared->clone() : at::zeros({numbers_in(parameter.tensor)}, former->own.options());
      if (former) {
        whole.narrow(0, former->own_begin, former->own.numel()).add_(former->own, own_weight(former_layout));
        whole.narrow(0, former->mean_begin, former->mean.numel())
            .add_(former->mean, static_cast<double>(saved.world_size));
      }
      whole.mul_(share);
      add_residual(by_parameter_[parameter.tensor.unsafeGetTensorImpl()], whole);
    }
  }
}

}  // namespace narrowcast::hooks
