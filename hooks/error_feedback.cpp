#include "hooks/error_feedback.h"

#include <ATen/ops/zeros.h>

#include <utility>

namespace narrowcast::hooks {

collectives::Residuals ErrorFeedback::residuals(const c10d::GradBucket& bucket,
                                                const std::vector<ParameterSegment>& layout) {
  const size_t index = bucket.getIndex();
  const int64_t numel = bucket.getBuffer().numel();
  const at::Device device = bucket.getBuffer().device();
  auto found = entries_.find(index);
  if (found != entries_.end() &&
      (found->second.layout != layout || found->second.own.numel() != numel || found->second.own.device() != device)) {
    retire_from(index);
    found = entries_.end();
  }
  if (found == entries_.end()) {
    found = entries_.emplace(index, make_entry(numel, layout, device)).first;
  }
  if (bucket.isLast()) {
    by_parameter_.clear();  // Parameters that are in no bucket any more.
  }
  return {found->second.own.mutable_data_ptr<float>(), found->second.mean.mutable_data_ptr<float>()};
}

// Buckets before `index` have their new layout, and may be on their way.
void ErrorFeedback::retire_from(size_t index) {
  const auto first = entries_.lower_bound(index);
  for (auto entry = first; entry != entries_.end(); ++entry) {
    const Entry& old = entry->second;
    old.own.narrow(0, old.shard.begin, old.shard.numel).add_(old.mean, static_cast<double>(world_size_));
    for (const ParameterSegment& parameter : old.layout) {
      by_parameter_[parameter.parameter] = old.own.narrow(0, parameter.segment.begin, parameter.segment.numel);
    }
  }
  entries_.erase(first, entries_.end());
}

ErrorFeedback::Entry ErrorFeedback::make_entry(int64_t numel, const std::vector<ParameterSegment>& layout,
                                               at::Device device) {
  const collectives::Segment shard = collectives::shard_of(rank_, world_size_, numel);
  const auto options = at::TensorOptions(at::kFloat).device(device);
  Entry entry{layout, shard, at::zeros({numel}, options), at::zeros({shard.numel}, options)};
  for (const ParameterSegment& parameter : layout) {
    const auto old = by_parameter_.find(parameter.parameter);
    if (old != by_parameter_.end() && old->second.numel() == parameter.segment.numel) {
      entry.own.narrow(0, parameter.segment.begin, parameter.segment.numel).copy_(old->second);
      by_parameter_.erase(old);
    }
  }
  return entry;
}

}  // namespace narrowcast::hooks
