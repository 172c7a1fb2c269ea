#include "trainer/ddp/reducer/reducer.h"

#include <c10/util/Exception.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/function.h>
#include <torch/custom_class.h>

#include <algorithm>
#include <string>
#include <torch/csrc/distributed/c10d/logger.hpp>
#include <unordered_map>
#include <utility>

#include <narrowcast/errors.h>
#include "ops/common/deferred_loss.h"

namespace narrowcast {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

std::unordered_map<size_t, std::string> names_by_index(const std::vector<NamedTensor>& parameters) {
  std::unordered_map<size_t, std::string> names;
  for (const NamedTensor& parameter : parameters) {
    names.emplace(names.size(), parameter.name);
  }
  return names;
}

std::vector<size_t> limits_of(const DdpOptions& options) {
  return {static_cast<size_t>(options.first_bucket_bytes_cap()), static_cast<size_t>(options.bucket_bytes_cap())};
}

// The Reducer calls its Logger without a null check as soon as the set of unused parameters changes. It holds the
// Logger weakly, because the Logger owns the Reducer. The Logger reads the Reducer in its destructor, so it must be
// destroyed first: members are destroyed in reverse order.
struct LoggedReducer {
  std::shared_ptr<c10d::Reducer> reducer;
  std::shared_ptr<c10d::Logger> logger;
};

// Returns a pointer to the Reducer that owns both.
std::shared_ptr<c10d::Reducer> with_logger(std::shared_ptr<c10d::Reducer> reducer) {
  auto logger = std::make_shared<c10d::Logger>(reducer);
  reducer->set_logger(logger);
  const auto both = std::make_shared<LoggedReducer>(LoggedReducer{std::move(reducer), std::move(logger)});
  return {both, both->reducer.get()};
}

// Carries a function in an IValue.
struct Callback : torch::CustomClassHolder {
  explicit Callback(std::function<void()> f) : function(std::move(f)) {}
  const std::function<void()> function;
};

// A node of the autograd graph between a module's outputs and the loss.
struct OutputSink : torch::autograd::Function<OutputSink> {
  static variable_list forward(AutogradContext* context, at::TensorList outputs, const c10::IValue& callback) {
    context->set_materialize_grads(false);
    context->saved_data["callback"] = callback;
    variable_list copies;
    for (const at::Tensor& output : outputs) {
      copies.push_back(output.clone());
    }
    return copies;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto callback = c10::static_intrusive_pointer_cast<Callback>(context->saved_data["callback"].toCapsule());
    if (callback->function) {
      callback->function();
    }
    gradients.emplace_back();  // Gradient of the callback.
    return gradients;
  }
};

}  // namespace

BucketIndices first_buckets(const std::vector<NamedTensor>& parameters, const DdpOptions& options) {
  constexpr auto kLeast = static_cast<int64_t>(kMeasuredBucketMb * kBytesOfMib);
  std::vector<size_t> limits = {static_cast<size_t>(std::max(kLeast, options.bucket_bytes_cap()))};
  if (options.find_unused_parameters()) {
    limits = limits_of(options);
  }
  BucketIndices buckets = std::get<0>(c10d::compute_bucket_assignment_by_size(tensors_of(parameters), limits));
  std::reverse(buckets.begin(), buckets.end());
  return buckets;
}

// The only call of the Reducer's constructor, whose arguments change between versions of LibTorch. It would make views
// of the gradients that are there, for instance of passes inside no_sync, and divides views with other roundings.
std::shared_ptr<c10d::Reducer> make_reducer(const std::vector<NamedTensor>& parameters, const ProcessGroupPtr& group,
                                            const DdpOptions& options, const BucketIndices& buckets) {
  std::vector<at::Tensor> gradients;
  for (const NamedTensor& parameter : parameters) {
    gradients.push_back(std::exchange(parameter.tensor.mutable_grad(), at::Tensor()));
  }
  const auto give_back = c10::make_scope_exit([&] {
    for (size_t i = 0; i < parameters.size(); ++i) {
      parameters[i].tensor.mutable_grad() = gradients[i];
    }
  });
  return with_logger(std::make_shared<c10d::Reducer>(
      tensors_of(parameters), buckets, group,
      /*expect_sparse_gradients=*/std::vector<bool>(parameters.size(), false), options.bucket_bytes_cap(),
      options.find_unused_parameters(), options.gradient_as_bucket_view(), names_by_index(parameters),
      options.first_bucket_bytes_cap(), /*skip_all_reduce_unused_params=*/false, /*use_python_reducer=*/false,
      /*bucket_bytes_cap_list=*/std::vector<int64_t>{}));
}

// c10d does not define the order of buckets that no cap has closed, one per dtype.
BucketIndices fill_buckets(const std::vector<at::Tensor>& parameters, const std::vector<size_t>& order,
                           const DdpOptions& options) {
  std::vector<at::Tensor> ordered;
  std::vector<int64_t> indices;
  std::vector<size_t> place(parameters.size());
  for (const size_t index : order) {
    place[index] = ordered.size();
    ordered.push_back(parameters[index]);
    indices.push_back(static_cast<int64_t>(index));
  }
  BucketIndices buckets = std::get<0>(c10d::compute_bucket_assignment_by_size(
      ordered, limits_of(options), std::vector<bool>(ordered.size(), false), indices));
  std::sort(buckets.begin(), buckets.end(),
            [&](const auto& a, const auto& b) { return place[a.back()] < place[b.back()]; });
  return buckets;
}

std::vector<std::vector<at::Tensor>> bucket_parameters(const c10d::Reducer& reducer) {
  std::vector<std::vector<at::Tensor>> buckets;
  for (const c10d::GradBucket& bucket : reducer.get_grad_buckets(/*return_zero_tensors=*/false)) {
    buckets.push_back(bucket.getParameters());
  }
  return buckets;
}

BucketNames bucket_names(const c10d::Reducer& reducer, const std::vector<NamedTensor>& parameters) {
  std::unordered_map<const void*, std::string> names;
  for (const NamedTensor& parameter : parameters) {
    names.emplace(parameter.tensor.unsafeGetTensorImpl(), parameter.name);
  }
  BucketNames buckets;
  for (const std::vector<at::Tensor>& bucket : bucket_parameters(reducer)) {
    buckets.emplace_back();
    for (const at::Tensor& parameter : bucket) {
      buckets.back().push_back(names.at(parameter.unsafeGetTensorImpl()));
    }
  }
  return buckets;
}

BucketIndices bucket_indices(const BucketNames& names, const std::vector<NamedTensor>& parameters) {
  std::unordered_map<std::string, size_t> left;
  for (const NamedTensor& parameter : parameters) {
    left.emplace(parameter.name, left.size());
  }
  BucketIndices buckets;
  for (const std::vector<std::string>& bucket : names) {
    NARROWCAST_CHECK_INPUT(!bucket.empty(), "a bucket without parameters");
    buckets.emplace_back();
    for (const std::string& name : bucket) {
      const auto found = left.find(name);
      NARROWCAST_CHECK_INPUT(found != left.end(), "parameter '", name, "' of a bucket is unknown, or in two buckets");
      buckets.back().push_back(found->second);
      left.erase(found);
    }
  }
  NARROWCAST_CHECK_INPUT(left.empty(), "parameter '", left.begin()->first, "' is in no bucket");
  return buckets;
}

void check_contains_parameters(const std::vector<at::Tensor>& outputs) {
  for (const at::Tensor& output : outputs) {
    // The output keeps its graph. (The type of a node's owner depends on LibTorch's version.)
    const torch::autograd::Node* node = output.defined() ? output.grad_fn().get() : nullptr;
    while (node != nullptr) {
      TORCH_CHECK_VALUE(node->name().find(kDeferredLossNode) == std::string::npos,
                        "find_unused_parameters and static_graph need the parameters in the autograd graph, but the "
                        "module computes its loss in the backward pass: do not call compute_loss_in_backward, or ",
                        "leave out these options");
      std::vector<const torch::autograd::Node*> next;
      for (const torch::autograd::Edge& edge : node->next_edges()) {
        if (edge.is_valid()) next.push_back(edge.function.get());
      }
      node = next.size() == 1 ? next[0] : nullptr;  // Only constants multiply such a loss.
    }
  }
}

std::vector<at::Tensor> pass_through_sink(const std::vector<at::Tensor>& outputs,
                                          const std::function<void()>& on_backward) {
  std::vector<at::Tensor> results = outputs;
  std::vector<size_t> places;  // Indices in `results` of the copied outputs.
  variable_list inputs;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i].defined() && outputs[i].grad_fn() != nullptr) {
      places.push_back(i);
      inputs.push_back(outputs[i]);
    }
  }
  if (inputs.empty()) {
    return results;
  }
  const variable_list copies =
      OutputSink::apply(at::TensorList(inputs), c10::IValue::make_capsule(c10::make_intrusive<Callback>(on_backward)));
  for (size_t i = 0; i < places.size(); ++i) {
    results[places[i]] = copies[i];
  }
  return results;
}

}  // namespace narrowcast
