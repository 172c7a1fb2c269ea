#include "hooks/bucket_layout.h"

namespace narrowcast::hooks {

using collectives::Segment;

std::vector<ParameterSegment> layout_of(const c10d::GradBucket& bucket) {
  const std::vector<at::Tensor> parameters = bucket.getParameters();
  if (parameters.empty()) {
    return {};
  }
  const std::vector<at::Tensor> gradients = bucket.getGradients();  // Views of the buffer.
  std::vector<ParameterSegment> layout;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const int64_t begin = gradients[i].storage_offset() - bucket.getBuffer().storage_offset();
    layout.push_back({parameters[i].unsafeGetTensorImpl(), {begin, gradients[i].numel()}, parameters[i].dim()});
  }
  return layout;
}

std::vector<Segment> one_dimensional_segments(const std::vector<ParameterSegment>& layout) {
  std::vector<Segment> segments;
  for (const ParameterSegment& parameter : layout) {
    if (parameter.dimensions > 1 || parameter.segment.numel == 0) {
      continue;
    }
    if (!segments.empty() && segments.back().begin + segments.back().numel == parameter.segment.begin) {
      segments.back().numel += parameter.segment.numel;
    } else {
      segments.push_back(parameter.segment);
    }
  }
  return segments;
}

}  // namespace narrowcast::hooks
