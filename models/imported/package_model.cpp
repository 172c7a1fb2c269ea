#include "models/imported/package_model.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <utility>

#include "models/imported/compiled_step.h"

namespace narrowcast::models {
namespace {

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

// The output of a graph without memory that others use: outputs may share memory with one another, and with the graph's
// inputs, which are parameters and buffers. It is contiguous, as gradients must be.
at::Tensor own_tensor(const at::Tensor& output) {
  return output.storage().use_count() > 1 ? output.clone(at::MemoryFormat::Contiguous) : output.contiguous();
}

// "targets at [0:8, 1:2]", in Python's notation for a sample; "targets" if these are all elements.
std::string elements_text(const char* kind, const PackagedRange& range, at::IntArrayRef sample_shape) {
  std::vector<std::string> parts;
  bool is_whole = true;
  for (size_t i = 0; i < range.slices.size(); ++i) {
    const auto [begin, end, step] = range.slices[i];
    parts.push_back(c10::str(begin, ":", end, step == 1 ? "" : c10::str(":", step)));
    is_whole = is_whole && begin == 0 && end == sample_shape[i] && step == 1;
  }
  return is_whole ? kind : c10::str(kind, " at [", c10::Join(", ", parts), "] of each sample");
}

void check_range(const std::string& path, const char* kind, const at::Tensor& tensor, const PackagedRange& range) {
  at::Tensor part = tensor;
  for (size_t i = 0; i < range.slices.size(); ++i) {
    const auto [begin, end, step] = range.slices[i];
    part = part.slice(static_cast<int64_t>(i) + 1, begin, end, step);
  }
  if (part.numel() == 0) return;
  part = part.to(at::kLong);  // As the compiled code converts floats to an index.
  if (range.ignored.has_value()) part = part.masked_fill(part.eq(*range.ignored), range.least);
  const auto [least, most] = part.aminmax();
  TORCH_CHECK_VALUE(range.least <= least.item<int64_t>() && most.item<int64_t>() <= range.most, path, ": takes ",
                    elements_text(kind, range, tensor.sizes().slice(1)), " in ", range.least, "..", range.most,
                    range.ignored.has_value() ? c10::str(" or ", *range.ignored) : "", ", but the data has ",
                    least.item<int64_t>(), " to ", most.item<int64_t>());
}

void check_tensor(const std::string& path, const char* kind, const at::Tensor& tensor, const PackagedInput& expected) {
  const bool fits = tensor.scalar_type() == expected.dtype && tensor.dim() >= 1 &&
                    tensor.sizes().slice(1) == at::IntArrayRef(expected.sample_shape) && tensor.is_cpu();
  TORCH_CHECK_VALUE(fits, path, ": takes ", kind, " of ", expected.dtype, " with ",
                    at::IntArrayRef(expected.sample_shape), " for each sample, but the data has ", tensor.scalar_type(),
                    " with ", tensor.dim() >= 1 ? tensor.sizes().slice(1) : tensor.sizes(),
                    tensor.is_cpu() ? "" : " on a GPU");
  for (const PackagedRange& range : expected.ranges) {
    check_range(path, kind, tensor, range);
  }
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
  const bool is_text = shape.size() == 1 && manifest_.inputs.dtype == at::kLong;
  return is_text ? std::optional(shape[0]) : std::nullopt;
}

std::optional<int64_t> PackageModel::classes() const {
  return has_classes() ? std::optional(manifest_.evaluate.outputs->back()) : std::nullopt;
}

Model::BatchSizes PackageModel::trained_sizes() const {
  return {.least = manifest_.train.least_batch, .most = manifest_.train.most_batch};
}

Model::BatchSizes PackageModel::evaluated_sizes() const {
  return {.least = manifest_.evaluate.least_batch, .most = manifest_.evaluate.most_batch};
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

std::vector<at::Tensor> PackageModel::run(const CompiledGraph& graph, const Batch& batch,
                                          const OnGradient& on_gradient) const {
  std::vector<at::Tensor> inputs;
  for (size_t i = 0; i < state_.size(); ++i) {
    const PackagedTensor& expected = manifest_.state[i];
    const bool fits = state_[i].is_cpu() && state_[i].scalar_type() == expected.dtype &&
                      state_[i].sizes() == at::IntArrayRef(expected.shape);
    TORCH_CHECK_VALUE(fits, path(), ": '", expected.name, "' has become ", state_[i].scalar_type(), " ",
                      state_[i].sizes(), " on ", state_[i].device(), ", but compiled code needs ", expected.dtype, " ",
                      at::IntArrayRef(expected.shape), " on the CPU");
    inputs.push_back(state_[i].detach().contiguous());
  }
  inputs.push_back(batch.inputs.contiguous());
  inputs.push_back(batch.targets.contiguous());
  std::vector<at::Tensor> outputs = graph.run(inputs, on_gradient);
  const bool trains = &graph == &train_;
  const PackagedGraph& listed = trains ? manifest_.train : manifest_.evaluate;
  const size_t count = 1 + listed.gradients.size() + listed.buffers.size() + listed.signals.size() +
                       static_cast<size_t>(listed.outputs.has_value());
  TORCH_CHECK_VALUE(outputs.size() == count, path(), ": its code returns ", outputs.size(),
                    " tensors, but its manifest lists ", count);
  return outputs;
}

void PackageModel::keep_buffers(const std::vector<at::Tensor>& outputs) {
  const at::NoGradGuard no_grad;
  const std::vector<std::string>& names = manifest_.train.buffers;
  std::vector<at::Tensor> values;
  for (size_t i = 0; i < names.size(); ++i) {
    values.push_back(own_tensor(outputs[1 + manifest_.train.gradients.size() + i]));  // It may be another buffer.
  }
  for (size_t i = 0; i < names.size(); ++i) {
    buffers_.at(names[i]).copy_(values[i]);
  }
}

at::Tensor PackageModel::forward(const Batch& batch) {
  if (!is_training()) return run_evaluation(batch)[0];
  check_batch(batch, manifest_.train);
  return is_deferred_ && at::GradMode::is_enabled() ? step_in_backward(batch) : step_at_once(batch);
}

at::Tensor PackageModel::step_in_backward(const Batch& batch) {
  return deferred_loss([this, batch](float factor) {
    std::vector<at::Tensor> others = state_;
    others.insert(others.end(), {batch.inputs, batch.targets});
    GradientHandOver hand_over(factor, others);
    const std::vector<at::Tensor> outputs = run(train_, batch, [&](int64_t number, const at::Tensor& gradient) {
      const at::Tensor& parameter = trained_.at(static_cast<size_t>(number));
      const std::string& name = manifest_.train.gradients[static_cast<size_t>(number)];
      const auto memory =
          manifest_.train.signals.at(name) ? GradientHandOver::Memory::kKept : GradientHandOver::Memory::kReused;
      if (parameter.requires_grad()) hand_over.add(parameter, gradient, memory);
    });
    hand_over.finish();
    const at::Tensor loss = own_tensor(outputs[0]);
    keep_buffers(outputs);
    return loss;
  });
}

at::Tensor PackageModel::step_at_once(const Batch& batch) {
  const std::vector<at::Tensor> outputs = run(train_, batch);
  const at::Tensor loss = own_tensor(outputs[0]);
  if (!at::GradMode::is_enabled()) {
    keep_buffers(outputs);
    return loss;
  }
  std::vector<at::Tensor> gradients;
  std::vector<at::Tensor> parameters;
  for (size_t i = 0; i < trained_.size(); ++i) {
    // A parameter that the loss does not depend on gets no gradient, as in eager PyTorch.
    const bool has_gradient = manifest_.train.signals.contains(manifest_.train.gradients[i]);
    if (!has_gradient || !trained_[i].requires_grad()) continue;
    gradients.push_back(own_tensor(outputs[1 + i]));
    parameters.push_back(trained_[i]);
  }
  keep_buffers(outputs);  // After the copies of gradients, which may be buffers.
  return with_gradients(loss, std::move(gradients), parameters);
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
