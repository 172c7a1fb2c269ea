#include "models/imported/package_model.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <functional>
#include <iterator>
#include <limits>
#include <utility>

#include "models/imported/gradient_listener.h"

namespace narrowcast::models {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kOnce = "the backward pass of a compiled training step can run only once";

// A gradient that is computed already. A tensor would be taken for an input of the autograd function.
struct Gradient {
  at::Tensor tensor;
};

// A loss whose gradients are known.
class KnownGradients : public torch::autograd::Function<KnownGradients> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& loss, const std::vector<Gradient>& gradients,
                            [[maybe_unused]] at::TensorList parameters) {
    std::vector<at::Tensor> tensors;
    for (const Gradient& gradient : gradients) {
      tensors.push_back(gradient.tensor);
    }
    context->saved_data["gradients"] = tensors;
    return loss.clone();
  }

  static variable_list backward(AutogradContext* context, const variable_list& of_loss) {
    c10::IValue& saved = context->saved_data["gradients"];
    TORCH_CHECK(saved.isTensorList(), kOnce);
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

// A training step that the backward pass runs.
struct DeferredStep : torch::CustomClassHolder {
  std::function<at::Tensor(float factor)> run;  // hands out the gradients times the factor, and returns the loss
  at::Tensor loss;                              // shares its memory with the loss that forward has returned
};

// A loss that the backward pass computes.
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
    TORCH_CHECK(saved.isCapsule(), kOnce);
    const auto step = c10::static_intrusive_pointer_cast<DeferredStep>(saved.toCapsule());
    saved = c10::IValue();
    step->loss.copy_(step->run(of_loss[0].item<float>()));
    return variable_list(2);
  }
};

// Gives a parameter its gradient by a backward pass inside the running one. What waits for the gradient, such as its
// exchange, begins. The parameter keeps the tensor that is passed, if nobody else does.
void hand_over(const at::Tensor& parameter, at::Tensor gradient) {
  const at::AutoGradMode enabled(true);
  at::Tensor loss;
  {
    const std::vector<Gradient> gradients = {{std::move(gradient)}};
    loss = KnownGradients::apply(at::ones({}), gradients, at::TensorList(parameter));
  }
  loss.backward();
}

// Registers a tensor under a name such as "layers.0.weight", in a holder module for each part of the name.
template <class Register>
void register_at(torch::nn::Module& root, const std::string& name, const Register& add) {
  torch::nn::Module* holder = &root;
  size_t begin = 0;
  for (size_t dot = name.find('.'); dot != std::string::npos; begin = dot + 1, dot = name.find('.', begin)) {
    const std::string part = name.substr(begin, dot - begin);
    const auto children = holder->named_children();
    const auto* const known = children.find(part);
    holder = known != nullptr ? known->get()
                              : holder->register_module(part, std::make_shared<torch::nn::Module>(part)).get();
  }
  add(*holder, name.substr(begin));
}

std::optional<Loss> loss_of(const PackageManifest& manifest) {
  const bool is_own = manifest.loss == "custom" || manifest.loss == "module";
  return is_own ? std::nullopt : std::optional(parse_loss(manifest.loss));
}

// Gradients become those of parameters: they must not share memory with one another or with parameters, whose values
// would then change, and they have the parameters' strides.
at::Tensor own_gradient(const at::Tensor& output) {
  return output.storage().use_count() > 1 ? output.clone(at::MemoryFormat::Contiguous) : output.contiguous();
}

void check_tensor(const std::string& path, const char* kind, const at::Tensor& tensor, const PackagedInput& expected) {
  const bool fits = tensor.scalar_type() == expected.dtype && tensor.dim() >= 1 &&
                    tensor.sizes().slice(1) == at::IntArrayRef(expected.sample_shape) && tensor.is_cpu();
  TORCH_CHECK_VALUE(fits, path, ": takes ", kind, " of ", expected.dtype, " with ",
                    at::IntArrayRef(expected.sample_shape), " for each sample, but the data has ", tensor.scalar_type(),
                    " with ", tensor.dim() >= 1 ? tensor.sizes().slice(1) : tensor.sizes(),
                    tensor.is_cpu() ? "" : " on a GPU");
}

}  // namespace

PackageModel::PackageModel(Package package, const std::string& path)
    : ImportedModel("PackageModel", path, loss_of(package.manifest), package.manifest.vocabulary),
      manifest_(std::move(package.manifest)),
      train_(path + ": its training step", package.train),
      evaluate_(path + ": its evaluation", package.evaluate) {
  register_state(package.weights);
}

void PackageModel::register_state(const std::map<std::string, at::Tensor>& weights) {
  for (const PackagedTensor& tensor : manifest_.state) {
    const at::Tensor& value = weights.at(tensor.name);
    register_at(*this, tensor.name, [&](torch::nn::Module& holder, const std::string& name) {
      if (tensor.role == PackagedTensor::Role::kBuffer) {
        holder.register_buffer(name, value);
      } else {
        holder.register_parameter(name, value, tensor.role == PackagedTensor::Role::kTrained);
      }
    });
  }
  const auto parameters = named_parameters();
  const auto buffers = named_buffers();
  for (const PackagedTensor& tensor : manifest_.state) {
    const bool is_buffer = tensor.role == PackagedTensor::Role::kBuffer;
    state_.push_back(is_buffer ? buffers[tensor.name] : parameters[tensor.name]);
    if (tensor.role == PackagedTensor::Role::kTrained) trained_.push_back(state_.back());
  }
  for (const std::string& name : manifest_.train.buffers) {
    buffers_.emplace(name, buffers[name]);
  }
}

std::vector<std::string> PackageModel::transient_buffers() const {
  std::vector<std::string> names;
  for (const PackagedTensor& tensor : manifest_.state) {
    if (!tensor.is_persistent) names.push_back(tensor.name);
  }
  return names;
}

std::optional<int64_t> PackageModel::context() const {
  const std::vector<int64_t>& shape = manifest_.inputs.sample_shape;
  return shape.size() == 1 ? std::optional(shape[0]) : std::nullopt;
}

std::optional<int64_t> PackageModel::classes() const {
  return has_classes() ? std::optional(manifest_.evaluate.outputs->back()) : std::nullopt;
}

bool PackageModel::has_classes() const { return loss() == Loss::kCrossEntropy && manifest_.targets.dtype == at::kLong; }

void PackageModel::check_batch(const Batch& batch, const PackagedGraph& graph) const {
  check_tensor(path(), "inputs", batch.inputs, manifest_.inputs);
  check_tensor(path(), "targets", batch.targets, manifest_.targets);
  const int64_t samples = batch.inputs.size(0);
  TORCH_CHECK_VALUE(batch.targets.size(0) == samples, path(), ": got ", samples, " inputs, but ", batch.targets.size(0),
                    " targets");
  TORCH_CHECK_VALUE(graph.least_batch <= samples && samples <= graph.most_batch, path(), ": takes from ",
                    graph.least_batch, " to ", graph.most_batch, " samples at once, but got ", samples,
                    "; --batch_size is the number of all ranks together");
  if (has_classes()) {
    check_classes(*classes(), batch.targets);
  } else {
    check_targets(batch.targets);
  }
}

std::vector<at::Tensor> PackageModel::run(const CompiledGraph& graph, const Batch& batch) const {
  std::vector<at::Tensor> inputs;
  for (const at::Tensor& tensor : state_) {
    inputs.push_back(tensor.detach().contiguous());
  }
  inputs.push_back(batch.inputs.contiguous());
  inputs.push_back(batch.targets.contiguous());
  return graph.run(inputs);
}

void PackageModel::keep_buffers(const std::vector<at::Tensor>& outputs) {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < manifest_.train.buffers.size(); ++i) {
    buffers_.at(manifest_.train.buffers[i]).copy_(outputs[1 + manifest_.train.gradients.size() + i]);
  }
}

at::Tensor PackageModel::forward(const Batch& batch) {
  if (!is_training()) return run_evaluation(batch)[0];
  check_batch(batch, manifest_.train);
  return is_deferred_ && at::GradMode::is_enabled() ? step_in_backward(batch) : step_at_once(batch);
}

at::Tensor PackageModel::step_in_backward(const Batch& batch) {
  auto step = c10::make_intrusive<DeferredStep>();
  step->run = [this, batch](float factor) {
    const GradientListener listener([&](int64_t parameter, const at::Tensor& gradient) {
      const auto number = static_cast<size_t>(parameter);
      const bool is_kept = manifest_.train.signals.at(manifest_.train.gradients.at(number));
      hand_over(trained_[number], factor != 1 ? gradient * factor : is_kept ? gradient.detach() : gradient.clone());
    });
    const std::vector<at::Tensor> outputs = run(train_, batch);
    listener.rethrow_failure();
    keep_buffers(outputs);
    return outputs[0];
  };
  return DeferredLoss::apply(at::empty({}).requires_grad_(), step);
}

at::Tensor PackageModel::step_at_once(const Batch& batch) {
  const std::vector<at::Tensor> outputs = run(train_, batch);
  keep_buffers(outputs);
  if (!at::GradMode::is_enabled()) return outputs[0];
  // A parameter that the loss does not depend on gets no gradient, as in eager PyTorch.
  std::vector<Gradient> gradients;
  variable_list parameters;
  size_t next = 1;
  for (size_t i = 0; i < state_.size(); ++i) {
    if (manifest_.state[i].role != PackagedTensor::Role::kTrained) continue;
    const at::Tensor& gradient = outputs[next++];
    if (manifest_.state[i].is_unused || !state_[i].requires_grad()) continue;
    gradients.push_back({own_gradient(gradient)});
    parameters.push_back(state_[i]);
  }
  return KnownGradients::apply(outputs[0], gradients, at::TensorList(parameters));
}

std::vector<at::Tensor> PackageModel::run_evaluation(const Batch& batch) const {
  check_batch(batch, manifest_.evaluate);
  return run(evaluate_, batch);
}

Evaluated PackageModel::evaluate(const Batch& batch) {
  const std::vector<at::Tensor> outputs = run_evaluation(batch);
  if (!has_classes()) return {.loss = outputs[0]};
  return {.loss = outputs[0], .accuracy = accuracy_of(outputs[1].flatten(0, -2), batch.targets.flatten())};
}

at::Tensor PackageModel::logits(const at::Tensor& inputs) {
  TORCH_CHECK_VALUE(loss() == Loss::kCrossEntropy, path(), ": returns no logits");
  std::vector<int64_t> shape = manifest_.targets.sample_shape;
  shape.insert(shape.begin(), inputs.size(0));
  return run_evaluation({.inputs = inputs, .targets = at::zeros(shape, manifest_.targets.dtype)})[1];
}

}  // namespace narrowcast::models
