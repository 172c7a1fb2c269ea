#include "trainer/ddp/reducer/parameter_watch.h"

#include <c10/util/StringUtil.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

namespace narrowcast {
namespace {

constexpr const char* kAdvice =
    "; its gradient would not be averaged. Convert, move and unfreeze parameters before DistributedDataParallel is "
    "made, or make a new one";

std::string describe_kind(const at::TensorOptions& options, at::IntArrayRef sizes) {
  return c10::str(c10::toString(c10::typeMetaToScalarType(options.dtype())), " ", sizes, " on ", options.device());
}

}  // namespace

ParameterWatch::ParameterWatch(const ModuleState& state) : parameters_now_(state.parameters_now) {
  for (const NamedTensor& parameter : state.parameters) {
    const at::Tensor& tensor = parameter.tensor;
    watched_.push_back({parameter,
                        tensor.requires_grad() ? torch::autograd::impl::grad_accumulator(tensor) : Accumulator(),
                        tensor.options(), tensor.sizes().vec()});
  }
}

std::string ParameterWatch::difference() const {
  for (const Watched& watched : watched_) {
    const at::Tensor& tensor = watched.parameter.tensor;
    if (watched.accumulator == nullptr) {
      if (tensor.requires_grad()) {
        return c10::str("parameter '", watched.parameter.name,
                        "' requires a gradient, but did not when DistributedDataParallel was made", kAdvice);
      }
      continue;
    }
    const bool same_accumulator = torch::autograd::impl::try_get_grad_accumulator(tensor) == watched.accumulator;
    if (!same_accumulator || tensor.sizes() != watched.sizes) {
      return c10::str("parameter '", watched.parameter.name, "' is ", describe_kind(tensor.options(), tensor.sizes()),
                      ", but was ", describe_kind(watched.options, watched.sizes),
                      " when DistributedDataParallel was made", kAdvice);
    }
  }
  return difference_in_module();
}

std::string ParameterWatch::difference_in_module() const {
  if (!parameters_now_) {
    return "";
  }
  const std::vector<NamedTensor> now = parameters_now_();
  for (size_t i = 0; i < std::min(now.size(), watched_.size()); ++i) {
    const NamedTensor& before = watched_[i].parameter;
    if (now[i].name != before.name || !now[i].tensor.is_same(before.tensor)) {
      return c10::str("parameter '", now[i].name, "' of the module is another tensor than parameter '", before.name,
                      "' was when DistributedDataParallel was made", kAdvice);
    }
  }
  if (now.size() != watched_.size()) {
    return c10::str("the module has ", now.size(), " parameters, but had ", watched_.size(),
                    " when DistributedDataParallel was made", kAdvice);
  }
  return "";
}

}  // namespace narrowcast
