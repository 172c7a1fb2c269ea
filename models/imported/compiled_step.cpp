#include "models/imported/compiled_step.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <iterator>
#include <limits>
#include <utility>

namespace narrowcast::models {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kRunsOnce = "the backward pass of a compiled training step can run only once";

// A quarter of DDP's first bucket. Smaller parts would not be sent earlier.
constexpr size_t kBytesTogether = size_t{256} << 10;

// Gradients that are computed already. Autograd would take tensors for inputs of its function.
struct Gradients {
  std::vector<at::Tensor> tensors;
};

class KnownGradients : public torch::autograd::Function<KnownGradients> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& loss, Gradients& gradients,
                            [[maybe_unused]] at::TensorList parameters) {
    context->saved_data["gradients"] = std::move(gradients.tensors);
    return loss.clone();
  }

  static variable_list backward(AutogradContext* context, const variable_list& of_loss) {
    c10::IValue& saved = context->saved_data["gradients"];
    TORCH_CHECK(saved.isTensorList(), kRunsOnce);
    std::vector<at::Tensor> gradients = saved.toTensorVector();
    saved = c10::IValue();  // Nobody else holds the gradients now, so that they need not be copied.
    if (of_loss[0].item<float>() != 1) {
      at::_foreach_mul_(gradients, of_loss[0]);
    }
    variable_list results(2);  // The loss and the gradients themselves get none.
    results.insert(results.end(), std::make_move_iterator(gradients.begin()), std::make_move_iterator(gradients.end()));
    return results;
  }
};

struct DeferredStep : torch::CustomClassHolder {
  RunStep run;
  at::Tensor loss;  // shares its memory with the loss that forward has returned
};

// DistributedDataParallel finds its node by the class's name, kDeferredLossNode.
class DeferredLoss : public torch::autograd::Function<DeferredLoss> {
 public:
  // `anchor` requires a gradient, so that the loss does.
  static at::Tensor forward(AutogradContext* context, [[maybe_unused]] const at::Tensor& anchor,
                            const c10::intrusive_ptr<DeferredStep>& step) {
    at::Tensor loss = at::full({}, std::numeric_limits<float>::quiet_NaN());
    step->loss = loss.detach();
    context->saved_data["step"] = c10::IValue::make_capsule(step);
    return loss;
  }

  static variable_list backward(AutogradContext* context, const variable_list& of_loss) {
    c10::IValue& saved = context->saved_data["step"];
    TORCH_CHECK(saved.isCapsule(), kRunsOnce);
    const auto step = c10::static_intrusive_pointer_cast<DeferredStep>(saved.toCapsule());
    saved = c10::IValue();
    step->loss.copy_(step->run(of_loss[0].item<float>()));
    return variable_list(2);
  }
};

const void* memory_of(const at::Tensor& tensor) { return tensor.storage().data(); }

}  // namespace

at::Tensor with_gradients(const at::Tensor& loss, std::vector<at::Tensor> gradients,
                          const std::vector<at::Tensor>& parameters) {
  Gradients known = {.tensors = std::move(gradients)};
  return KnownGradients::apply(loss, known, at::TensorList(parameters));
}

at::Tensor deferred_loss(RunStep run) {
  auto step = c10::make_intrusive<DeferredStep>();
  step->run = std::move(run);
  return DeferredLoss::apply(at::empty({}).requires_grad_(), step);
}

GradientHandOver::GradientHandOver(float factor, const std::vector<at::Tensor>& others) : factor_(factor) {
  for (const at::Tensor& other : others) {
    memories_.insert(memory_of(other));
  }
}

at::Tensor GradientHandOver::own(const at::Tensor& gradient, Memory memory) {
  if (factor_ != 1) return gradient * factor_;
  const bool is_alone = memories_.insert(memory_of(gradient)).second;
  return memory == Memory::kKept && is_alone ? gradient.detach() : gradient.clone();
}

void GradientHandOver::add(const at::Tensor& parameter, const at::Tensor& gradient, Memory memory) {
  parameters_.push_back(parameter);
  gradients_.push_back(own(gradient, memory));
  bytes_ += gradient.nbytes();
  if (bytes_ >= kBytesTogether) finish();
}

void GradientHandOver::finish() {
  if (parameters_.empty()) return;
  const std::vector<at::Tensor> parameters = std::exchange(parameters_, {});
  bytes_ = 0;
  const at::AutoGradMode enabled(true);
  with_gradients(at::ones({}), std::exchange(gradients_, {}), parameters).backward();
}

}  // namespace narrowcast::models
