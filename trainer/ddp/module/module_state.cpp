#include <narrowcast/module_state.h>

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/nn/modules/embedding.h>

#include <unordered_set>

#include "ops/comm/groups/group.h"

namespace narrowcast {
namespace {

std::vector<NamedTensor> without_duplicates(const std::vector<NamedTensor>& tensors) {
  std::unordered_set<const at::TensorImpl*> seen;
  std::vector<NamedTensor> unique;
  for (const NamedTensor& named : tensors) {
    if (named.tensor.defined() && seen.insert(named.tensor.unsafeGetTensorImpl()).second) {
      unique.push_back(named);
    }
  }
  return unique;
}

std::vector<NamedTensor> to_list(const torch::OrderedDict<std::string, at::Tensor>& tensors) {
  std::vector<NamedTensor> list;
  for (const auto& item : tensors) {
    list.push_back({item.key(), item.value()});
  }
  return without_duplicates(list);
}

template <class NamedList>  // torch::jit's named_parameter_list or named_buffer_list.
std::vector<NamedTensor> to_list(const NamedList& tensors) {
  std::vector<NamedTensor> list;
  for (const auto& named : tensors) {
    list.push_back({named.name, named.value});
  }
  return without_duplicates(list);
}

template <class EmbeddingImpl>
void check_dense(const std::string& name, const std::shared_ptr<torch::nn::Module>& module) {
  const auto* const embedding = module->as<EmbeddingImpl>();
  TORCH_CHECK_VALUE(embedding == nullptr || !embedding->options.sparse(), "module '", name,
                    "' makes sparse gradients, which cannot be bucketed; create it with sparse(false)");
}

void check_strided(const char* kind, const std::vector<NamedTensor>& tensors) {
  for (const NamedTensor& named : tensors) {
    TORCH_CHECK_VALUE(named.tensor.layout() == at::kStrided, kind, " '", named.name, "' has the layout ",
                      named.tensor.layout(), ", but only dense tensors can be broadcast");
    TORCH_CHECK_VALUE(!named.tensor.is_quantized(), kind, " '", named.name, "' is ", named.tensor.scalar_type(),
                      ", but quantised tensors cannot be broadcast");
  }
}

ModuleState checked(ModuleState state) {
  check_strided("parameter", state.parameters);
  check_strided("buffer", state.buffers);
  return state;
}

std::string describe(const at::Tensor& tensor) {
  return c10::str(c10::toString(tensor.scalar_type()), " ", tensor.sizes(), " strides ", tensor.strides(), " on ",
                  c10::DeviceTypeName(tensor.device().type(), /*lower_case=*/true),
                  tensor.requires_grad() ? " with gradient" : "");
}

}  // namespace

std::vector<NamedTensor> ModuleState::trainable() const {
  std::vector<NamedTensor> tensors;
  std::copy_if(parameters.begin(), parameters.end(), std::back_inserter(tensors),
               [](const NamedTensor& parameter) { return parameter.tensor.requires_grad(); });
  return tensors;
}

std::vector<at::Tensor> tensors_of(const std::vector<NamedTensor>& named) {
  std::vector<at::Tensor> tensors;
  for (const NamedTensor& entry : named) {
    tensors.push_back(entry.tensor);
  }
  return tensors;
}

ModuleState module_state(const std::shared_ptr<torch::nn::Module>& module) {
  TORCH_CHECK_VALUE(module != nullptr, "module must not be null");
  for (const auto& item : module->named_modules()) {
    check_dense<torch::nn::EmbeddingImpl>(item.key(), item.value());
    check_dense<torch::nn::EmbeddingBagImpl>(item.key(), item.value());
  }
  return checked({to_list(module->named_parameters()), to_list(module->named_buffers()),
                  [module] { return to_list(module->named_parameters()); }});
}

ModuleState module_state(const torch::jit::Module& module) {
  return checked({to_list(module.named_parameters()), to_list(module.named_buffers()),
                  [module] { return to_list(module.named_parameters()); }});
}

std::vector<NamedValue> describe(const ModuleState& state) {
  std::vector<NamedValue> values;
  for (const NamedTensor& parameter : state.parameters) {
    values.push_back({c10::str("parameter '", parameter.name, "'"), describe(parameter.tensor)});
  }
  for (const NamedTensor& buffer : state.buffers) {
    values.push_back({c10::str("buffer '", buffer.name, "'"), describe(buffer.tensor)});
  }
  return values;
}

void check_trainable(const ModuleState& state, const ProcessGroupPtr& group) {
  const std::vector<NamedTensor> trainable = state.trainable();
  TORCH_CHECK_VALUE(!trainable.empty(), "module has no parameter that requires a gradient (of ",
                    state.parameters.size(), " parameters)");
  const NamedTensor& first = trainable[0];
  for (const NamedTensor& parameter : trainable) {
    TORCH_CHECK_VALUE(parameter.tensor.device() == first.tensor.device(), "parameter '", parameter.name, "' is on ",
                      parameter.tensor.device(), " but parameter '", first.name, "' is on ", first.tensor.device(),
                      "; all must be on one device");
  }
  TORCH_CHECK_VALUE(collectives::moves_tensors_on(first.tensor.device().type(), group), "parameter '", first.name,
                    "' is on ", first.tensor.device(), ", but backend ", group->getBackendName(),
                    " of the process group does not move such tensors");
}

}  // namespace narrowcast
