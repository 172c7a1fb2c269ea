#include "trainer/ddp/output_sink.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <utility>

namespace narrowcast {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Carries a function in an IValue.
struct Callback : torch::CustomClassHolder {
  explicit Callback(std::function<void()> f) : function(std::move(f)) {}
  const std::function<void()> function;
};

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
