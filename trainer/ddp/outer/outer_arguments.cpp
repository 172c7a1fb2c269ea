#include "trainer/ddp/outer/outer_arguments.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <set>
#include <string>
#include <unordered_set>

#include <narrowcast/consensus.h>
#include <narrowcast/version.h>
#include "ops/comm/groups/agree.h"
#include "ops/common/backend_timeout.h"
#include "trainer/ddp/sharding/shared_parameters.h"

namespace narrowcast {
namespace {

bool is_taken(at::ScalarType dtype) { return dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16; }

std::vector<NamedValue> compared_values(const OuterOptions& options, const std::vector<at::Tensor>& parameters,
                                        const std::vector<int64_t>& groups) {
  std::vector<NamedValue> values = {{"narrowcast version", version()}};
  for (const hooks::NamedOption& option : options.named()) {
    values.push_back({option.name, hooks::text_of(option.value)});
  }
  values.push_back({"first_exchange", c10::str(options.effective_first_exchange())});
  values.push_back({"groups", c10::str("{", c10::Join(", ", groups), "}")});
  values.push_back({"the number of parameters", c10::str(parameters.size())});
  for (size_t i = 0; i < parameters.size(); ++i) {
    values.push_back({c10::str("parameter ", i), c10::str(parameters[i].scalar_type(), " ", parameters[i].sizes())});
  }
  return values;
}

// In a group of several ranks, the others wait for the first one's result in a collective.
void check_grace(const OuterOptions& options, const ProcessGroupPtr& group) {
  const std::vector<c10::Device> devices = group->getDeviceTypes();
  if (!options.grace_seconds() || std::ranges::find(devices, c10::Device(at::kCPU)) == devices.end()) {
    return;
  }
  const std::chrono::duration<double> timeout = timeout_of(*group->getBackend(c10::DeviceType::CPU));
  TORCH_CHECK_VALUE(*options.grace_seconds() < timeout.count(), "outer_grace_seconds: must be below the time limit of ",
                    "the group's collectives (", timeout.count(), " s), but is ", *options.grace_seconds());
}

}  // namespace

void check_quorum(const OuterOptions& options, int64_t groups) {
  if (!options.quorum()) {
    return;
  }
  TORCH_CHECK_VALUE(*options.quorum() <= groups, "outer_quorum: must be at most the number of groups (", groups,
                    "), but is ", *options.quorum());
  TORCH_CHECK_VALUE(!options.grace_seconds() || *options.quorum() < groups,
                    "outer_grace_seconds: ", options.grace_seconds().value_or(0),
                    " has no effect with an outer_quorum of all ", groups, " groups");
}

std::vector<at::Tensor> outer_parameters_of(const torch::optim::Optimizer& optimizer) {
  std::vector<at::Tensor> parameters;
  std::unordered_set<const at::TensorImpl*> seen;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      if (parameter.requires_grad() && seen.insert(parameter.unsafeGetTensorImpl()).second) {
        parameters.push_back(parameter);
      }
    }
  }
  TORCH_CHECK_VALUE(!parameters.empty(), "the optimizer has no parameter that requires a gradient");
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& parameter = parameters[i];
    TORCH_CHECK_VALUE(is_taken(parameter.scalar_type()), "parameter ", i, " of the optimizer is ",
                      parameter.scalar_type(), ", but must be float32, float16 or bfloat16: the reference is float32");
    TORCH_CHECK_VALUE(parameter.device() == parameters[0].device(), "parameter ", i, " of the optimizer is on ",
                      parameter.device(), ", but parameter 0 on ", parameters[0].device(),
                      "; all must be on one device");
    TORCH_CHECK_VALUE(parameter.is_non_overlapping_and_dense(), "parameter ", i, " of the optimizer, of sizes ",
                      parameter.sizes(), " and strides ", parameter.strides(), ", has holes or overlaps in memory");
    sharding::check_is_not_shared(parameter, "OuterOptimizer", c10::str("parameter ", i, " of the optimizer"));
  }
  return parameters;
}

int64_t elements_of(const std::vector<at::Tensor>& parameters) {
  int64_t elements = 0;
  for (const at::Tensor& parameter : parameters) {
    elements += parameter.numel();
  }
  return elements;
}

OuterOptions agree_on_outer_options(const torch::optim::Optimizer& inner, const ProcessGroupPtr& group,
                                    const std::function<OuterOptions()>& read_options,
                                    const std::vector<int64_t>& groups) {
  OuterOptions options;
  std::vector<at::Tensor> parameters;
  const auto check = [&] {
    options = read_options();
    options.validate();
    parameters = outer_parameters_of(inner);
    const int64_t elements = elements_of(parameters);
    TORCH_CHECK_VALUE(options.fragments() <= elements, "fragments: must be at most the number of elements (", elements,
                      "), but is ", options.fragments());
    TORCH_CHECK_VALUE(groups.empty() || std::ssize(groups) == group->getSize(),
                      "groups: must have one number per rank (", group->getSize(), "), but has ", groups.size());
    check_quorum(options,
                 groups.empty() ? group->getSize() : std::ssize(std::set<int64_t>(groups.begin(), groups.end())));
    check_grace(options, group);
  };
  if (group->getSize() == 1) {
    check();
  } else {
    collectives::agree(group, {.call = "OuterOptimizer", .refusal = collectives::refusal_of(check)});
    check_equal_on_all_ranks(group, compared_values(options, parameters, groups));
  }
  return options;
}

}  // namespace narrowcast
