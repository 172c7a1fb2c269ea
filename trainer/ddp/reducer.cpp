#include "trainer/ddp/reducer.h"

#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/custom_class.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <string>
#include <unordered_map>
#include <utility>

#include <narrowcast/errors.h>

namespace narrowcast {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The buckets of the first step, by index into `parameters`. Gradients come in
// roughly the reverse order of the parameters, so buckets do, too. If every step
// uses all parameters, the first step only observes the true order, with one bucket
// per dtype; else buckets are never rebuilt and must be right at once.
BucketIndices plan_buckets(const std::vector<at::Tensor>& parameters, const DdpOptions& options) {
  std::vector<size_t> limits = {std::numeric_limits<size_t>::max()};
  if (options.find_unused_parameters()) {
    limits = {static_cast<size_t>(options.first_bucket_bytes_cap()), static_cast<size_t>(options.bucket_bytes_cap())};
  }
  BucketIndices buckets = std::get<0>(c10d::compute_bucket_assignment_by_size(parameters, limits));
  std::reverse(buckets.begin(), buckets.end());
  return buckets;
}

std::unordered_map<size_t, std::string> names_by_index(const std::vector<NamedTensor>& parameters) {
  std::unordered_map<size_t, std::string> names;
  for (const NamedTensor& parameter : parameters) {
    names.emplace(names.size(), parameter.name);
  }
  return names;
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
    gradients.emplace_back();  // Of the callback.
    return gradients;
  }
};

}  // namespace

// The only call of the Reducer's constructor, whose arguments change between versions of LibTorch.
std::shared_ptr<c10d::Reducer> make_reducer(const std::vector<NamedTensor>& parameters, const ProcessGroupPtr& group,
                                            const DdpOptions& options) {
  const std::vector<at::Tensor> tensors = tensors_of(parameters);
  return std::make_shared<c10d::Reducer>(
      tensors, plan_buckets(tensors, options), group,
      /*expect_sparse_gradients=*/std::vector<bool>(tensors.size(), false), options.bucket_bytes_cap(),
      options.find_unused_parameters(), options.gradient_as_bucket_view(), names_by_index(parameters),
      options.first_bucket_bytes_cap(), /*skip_all_reduce_unused_params=*/false, /*use_python_reducer=*/false,
      /*bucket_bytes_cap_list=*/std::vector<int64_t>{});
}

// The Reducer notices here that its last reduction is unfinished, and says so in
// terms of PyTorch's Python interface.
bool rebuild_buckets(c10d::Reducer& reducer) {
  try {
    return reducer.rebuild_buckets();
  } catch (const c10::Error& error) {
    const std::string message = error.what_without_backtrace();
    TORCH_CHECK_VALUE(message.rfind("Expected to have finished reduction", 0) != 0,
                      "in the last backward pass some parameters got no gradient: let the loss use all outputs of the "
                      "module and the module all its parameters, or set find_unused_parameters; with static_graph "
                      "every step must use the same parameters");
    throw;
  }
}

BucketNames bucket_names(const c10d::Reducer& reducer, const std::vector<NamedTensor>& parameters) {
  std::unordered_map<const void*, std::string> names;
  for (const NamedTensor& parameter : parameters) {
    names.emplace(parameter.tensor.unsafeGetTensorImpl(), parameter.name);
  }
  BucketNames buckets;
  for (const c10d::GradBucket& bucket : reducer.get_grad_buckets(/*return_zero_tensors=*/false)) {
    buckets.emplace_back();
    for (const at::Tensor& parameter : bucket.getParameters()) {
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

struct ReductionCounter::State {
  std::atomic<bool> armed = false;
  std::atomic<int64_t> count = 0;
};

// The accumulators of the parameters, which only who needs them keeps alive, and the hook's key in each.
struct ReductionCounter::Hooks {
  using Accumulator = decltype(torch::autograd::impl::grad_accumulator(at::Tensor()));
  std::vector<std::pair<Accumulator, uintptr_t>> list;
};

ReductionCounter::ReductionCounter(const std::vector<at::Tensor>& parameters)
    : state_(std::make_shared<State>()), hooks_(std::make_unique<Hooks>()) {
  const auto count_once = [state = state_](const variable_list& outputs, const variable_list& /*inputs*/) {
    if (state->armed.exchange(false)) {
      ++state->count;
    }
    return outputs;
  };
  for (const at::Tensor& parameter : parameters) {
    auto accumulator = torch::autograd::impl::grad_accumulator(parameter);
    const uintptr_t key =
        accumulator->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(count_once));
    hooks_->list.emplace_back(std::move(accumulator), key);
  }
}

ReductionCounter::~ReductionCounter() {
  for (const auto& [accumulator, key] : hooks_->list) {
    accumulator->del_post_hook(key);
  }
}

void ReductionCounter::arm() { state_->armed = true; }

int64_t ReductionCounter::count() const { return state_->count; }

void ReductionCounter::set_count(int64_t count) { state_->count = count; }

std::vector<at::Tensor> pass_through_sink(const std::vector<at::Tensor>& outputs,
                                          const std::function<void()>& on_backward) {
  std::vector<at::Tensor> results = outputs;
  std::vector<size_t> places;  // In `results`, of the tensors that go through.
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
