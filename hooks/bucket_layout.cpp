#include "hooks/bucket_layout.h"

namespace narrowcast::hooks {

using collectives::Run;

std::vector<ParameterRun> layout_of(const c10d::GradBucket& bucket) {
  const std::vector<at::Tensor> parameters = bucket.getParameters();
  if (parameters.empty()) {
    return {};
  }
  const std::vector<at::Tensor> gradients = bucket.getGradients();  // Views of the buffer.
  std::vector<ParameterRun> layout;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const int64_t begin = gradients[i].storage_offset() - bucket.getBuffer().storage_offset();
    layout.push_back({parameters[i].unsafeGetTensorImpl(), {begin, gradients[i].numel()}, parameters[i].dim()});
  }
  return layout;
}

std::vector<Run> one_dimensional_runs(const std::vector<ParameterRun>& layout) {
  std::vector<Run> runs;
  for (const ParameterRun& parameter : layout) {
    if (parameter.dimensions > 1 || parameter.run.numel == 0) {
      continue;
    }
    if (!runs.empty() && runs.back().begin + runs.back().numel == parameter.run.begin) {
      runs.back().numel += parameter.run.numel;
    } else {
      runs.push_back(parameter.run);
    }
  }
  return runs;
}

}  // namespace narrowcast::hooks
