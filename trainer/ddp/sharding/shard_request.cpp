// The parameters of an optimizer that can be sharded.
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <torch/optim/lbfgs.h>

#include <unordered_set>

#include "trainer/ddp/sharding/optimizer_kinds.h"
#include "trainer/ddp/sharding/shard_agreement.h"

namespace narrowcast::sharding {
namespace {

using torch::optim::Optimizer;

void check_optimizer(const Optimizer& optimizer, const ShardOptions& options) {
  TORCH_CHECK_VALUE(dynamic_cast<const torch::optim::LBFGS*>(&optimizer) == nullptr,
                    "LBFGS computes with all parameters at once, so it cannot be sharded");
  TORCH_CHECK_VALUE(optimizer.state().empty(),
                    "the optimizer already has a state: shard it before its first step. Adagrad makes its state in its "
                    "constructor, so it cannot be sharded");
  const OptimizerKind* const kind = kind_of(optimizer);
  const bool is_elementwise = kind != nullptr && kind->cost == nullptr;
  TORCH_CHECK_VALUE(options.whole_parameters() || is_elementwise, "the optimizer is none of ", elementwise_kind_names(),
                    ", so its steps may need whole parameters: set ShardOptions::whole_parameters");
}

}  // namespace

ShardRequest shard_request(const Optimizer& optimizer, const ShardOptions& options) {
  check_optimizer(optimizer, options);
  const OptimizerKind* const kind = kind_of(optimizer);
  const auto& format = options.parameter_format();
  ShardRequest request{.options = options,
                       .values = {{"the optimizer", kind != nullptr ? kind->name : "another one"},
                                  {"parameter_format", format ? c10::str(*format) : "not set"}}};
  std::unordered_set<const at::TensorImpl*> seen;
  for (size_t group = 0; group < optimizer.param_groups().size(); ++group) {
    for (const at::Tensor& parameter : optimizer.param_groups()[group].params()) {
      if (parameter.requires_grad() && seen.insert(parameter.unsafeGetTensorImpl()).second) {
        request.parameters.push_back(parameter);
        request.groups.push_back(group);
        if (kind != nullptr && kind->cost != nullptr) {
          request.costs.push_back(kind->cost(optimizer.param_groups()[group].options(), parameter.sizes()));
        }
      }
    }
  }
  return request;
}

}  // namespace narrowcast::sharding
