#include "models/script_model.h"

#include <ATen/ATen.h>
#include <ATen/core/function_schema.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/autograd/autograd.h>

#include <exception>
#include <string_view>
#include <utility>

#include "ops/common/enumerator_names.h"
#include "ops/common/error_message.h"

namespace narrowcast::models {
namespace {

constexpr EnumeratorNames<Loss, 3> kLossNames{
    "loss",
    "Loss",
    {{{Loss::kCrossEntropy, "cross_entropy"}, {Loss::kMse, "mse"}, {Loss::kBceWithLogits, "bce_with_logits"}}}};

// The sizes without dimensions of size 1.
std::vector<int64_t> long_dimensions(at::IntArrayRef sizes) {
  std::vector<int64_t> dimensions = sizes.vec();
  std::erase(dimensions, 1);
  return dimensions;
}

// TorchScript's message first has the place, line by line, and then the reason, which may have many lines.
std::string reason_of(const std::exception& error) {
  constexpr std::string_view kReason = "\nRuntimeError: ";
  const std::string text = error_message(error);
  const size_t reason = text.rfind(kReason);
  if (reason != std::string::npos) {
    return first_line(std::string_view(text).substr(reason + 1));
  }
  const size_t end = text.find_last_not_of(" \n");
  const size_t begin = text.rfind('\n', end);
  return text.substr(begin == std::string::npos ? 0 : begin + 1, end - begin);
}

std::string signature(const c10::FunctionSchema& schema) {
  std::vector<std::string> arguments;
  for (size_t i = 1; i < schema.arguments().size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    arguments.push_back(c10::str(argument.type()->repr_str(), " ", argument.name(),
                                 argument.default_value().has_value() ? " = ..." : ""));
  }
  return c10::str(schema.name(), "(", c10::Join(", ", arguments), ")");
}

// Number of tensors without a default; std::nullopt if another kind of argument has no default.
std::optional<size_t> required_tensors(const c10::FunctionSchema& schema) {
  size_t count = 0;
  for (size_t i = 1; i < schema.arguments().size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    if (argument.default_value().has_value()) {
      continue;
    }
    if (argument.kwarg_only() || !c10::TensorType::get()->isSubtypeOf(*argument.type())) {
      return std::nullopt;
    }
    ++count;
  }
  return count;
}

}  // namespace

Loss parse_loss(const std::string& name) { return kLossNames.parse(name); }

std::string to_string(Loss loss) { return std::string(kLossNames.name_of(loss)); }

std::string loss_names() { return kLossNames.joined(" or "); }

bool returns_loss(const torch::jit::Module& module, const std::string& name) {
  const auto method = module.find_method("forward");
  TORCH_CHECK_VALUE(method.has_value(), name, ": has no method forward");
  const c10::FunctionSchema& schema = method->function().getSchema();
  const std::optional<size_t> tensors = required_tensors(schema);
  TORCH_CHECK_VALUE(tensors == 1U || tensors == 2U, name, ": its forward must take the tensors (inputs), and return ",
                    "predictions, or (inputs, targets), and return the loss, but is ", signature(schema));
  return tensors == 2U;
}

ScriptModel::ScriptModel(torch::jit::Module module, ScriptOptions options)
    : Model("ScriptModel"), module_(std::move(module)), options_(std::move(options)) {
  const bool has_loss = returns_loss(module_, options_.name);
  const std::string forward = signature(module_.get_method("forward").function().getSchema());
  TORCH_CHECK_VALUE(has_loss || options_.loss.has_value(), "loss: must be ", loss_names(), " for ", options_.name,
                    ", whose ", forward, " takes no targets and returns predictions");
  TORCH_CHECK_VALUE(!has_loss || !options_.loss.has_value(), "loss: has no effect with ", options_.name, ", whose ",
                    forward, " returns the loss itself");
  state_.emplace(module_, *this, options_.name);
  train(module_.is_training());
}

at::Tensor ScriptModel::run(std::vector<c10::IValue> arguments) {
  const char* const returned = options_.loss == Loss::kCrossEntropy ? "logits"
                               : options_.loss.has_value()          ? "predictions"
                                                                    : "one number, the loss";
  if (mode_ != is_training()) {
    module_.train(is_training());
    mode_ = is_training();
  }
  const auto shape = arguments[0].toTensor().sizes().vec();
  const torch::jit::GraphOptimizerEnabledGuard as_written(false);
  const ScriptState::Pass pass(*state_);
  c10::IValue output;
  try {
    output = module_.forward(std::move(arguments));
  } catch (const std::exception& error) {
    TORCH_CHECK_VALUE(false, options_.name, ": its forward failed on inputs of shape ", at::IntArrayRef(shape), ": ",
                      reason_of(error));
  }
  pass.keep();
  TORCH_CHECK_VALUE(output.isTensor() && output.toTensor().is_floating_point(), options_.name,
                    ": its forward must return a tensor of ", returned, ", but returns ", output.tagKind(),
                    output.isTensor() ? c10::str(" of ", output.toTensor().scalar_type()) : "");
  return output.toTensor();
}

at::Tensor ScriptModel::predictions(const at::Tensor& inputs) { return run({inputs}); }

at::Tensor ScriptModel::logits(const at::Tensor& inputs) {
  at::Tensor logits = predictions(inputs);
  TORCH_CHECK_VALUE(logits.dim() >= 2 && logits.size(0) == inputs.size(0), options_.name,
                    ": its forward must return logits of shape [batch, ..., classes], but for inputs of shape ",
                    inputs.sizes(), " it returns ", logits.sizes());
  return logits;
}

void ScriptModel::check_targets(const at::Tensor& targets) const {
  if (options_.loss != Loss::kBceWithLogits) return;
  const auto least = targets.min().item<float>();
  const auto most = targets.max().item<float>();
  TORCH_CHECK_VALUE(least >= 0 && most <= 1,
                    "loss: bce_with_logits needs targets in 0..1, but the data has targets from ", least, " to ", most);
}

void ScriptModel::check_classes(const ClassRows& rows) const {
  const int64_t classes = rows.logits.size(1);
  if (expected_classes_.has_value()) {
    TORCH_CHECK_VALUE(*expected_classes_ <= classes, options_.name, ": returns logits for ", classes,
                      " classes, but the data needs ", *expected_classes_);
  } else if (rows.targets.is_cpu()) {  // Reading them from a GPU would wait for it.
    TORCH_CHECK_VALUE(rows.targets.min().item<int64_t>() >= 0, "loss: cross_entropy needs classes from 0 as targets, ",
                      "but the data has a target ", rows.targets.min().item<int64_t>());
    TORCH_CHECK_VALUE(rows.targets.max().item<int64_t>() < classes, options_.name, ": returns logits for ", classes,
                      " classes, but the data has a target ", rows.targets.max().item<int64_t>());
  }
}

ScriptModel::ClassRows ScriptModel::class_rows(const Batch& batch) {
  TORCH_CHECK_VALUE(batch.targets.scalar_type() == at::kLong, "loss: cross_entropy needs int64 classes as targets, ",
                    "but the data has ", batch.targets.scalar_type());
  const at::Tensor all = logits(batch.inputs);
  TORCH_CHECK_VALUE(long_dimensions(all.sizes().slice(0, all.dim() - 1)) == long_dimensions(batch.targets.sizes()),
                    options_.name, ": its forward must return one row of logits per target, classes last, but returns ",
                    all.sizes(), " for targets of shape ", batch.targets.sizes());
  ClassRows rows = {.logits = all.flatten(0, -2).to(at::kFloat), .targets = batch.targets.flatten()};
  check_classes(rows);
  return rows;
}

at::Tensor ScriptModel::loss_of_values(const Batch& batch) {
  const at::Tensor values = predictions(batch.inputs);
  TORCH_CHECK_VALUE(values.dim() >= 1 && values.size(0) == batch.targets.size(0) &&
                        long_dimensions(values.sizes()) == long_dimensions(batch.targets.sizes()),
                    options_.name, ": its forward must return one prediction per target for the loss ",
                    to_string(*options_.loss), ", in the same shape, but returns ", values.sizes(),
                    " for targets of shape ", batch.targets.sizes());
  const at::Tensor targets = batch.targets.to(at::kFloat).reshape(values.sizes());
  if (options_.loss == Loss::kMse) {
    return at::mse_loss(values.to(at::kFloat), targets);
  }
  if (targets.is_cpu()) {
    check_targets(targets);
  }
  return at::binary_cross_entropy_with_logits(values.to(at::kFloat), targets);
}

at::Tensor ScriptModel::forward(const Batch& batch) {
  if (options_.loss == Loss::kCrossEntropy) {
    const ClassRows rows = class_rows(batch);
    return at::cross_entropy_loss(rows.logits, rows.targets, /*weight=*/{}, at::Reduction::Mean, /*ignore_index=*/-100,
                                  label_smoothing());
  }
  if (options_.loss.has_value()) {
    return loss_of_values(batch);
  }
  const at::Tensor loss = run({batch.inputs, batch.targets});
  TORCH_CHECK_VALUE(loss.numel() == 1, options_.name, ": its forward must return one number, the loss, but returns ",
                    loss.sizes());
  return loss.to(at::kFloat).reshape({});
}

Evaluated ScriptModel::evaluate(const Batch& batch) {
  if (options_.loss != Loss::kCrossEntropy) {
    return {.loss = forward(batch)};
  }
  const ClassRows rows = class_rows(batch);
  return {.loss = at::cross_entropy_loss(rows.logits, rows.targets),
          .accuracy = rows.logits.argmax(1).eq(rows.targets).to(at::kDouble).mean()};
}

std::vector<std::string> ScriptModel::check_trains(const Batch& batch) {
  std::vector<std::string> names;
  std::vector<at::Tensor> trained;
  for (const auto& parameter : named_parameters()) {
    if (!parameter.value().requires_grad()) continue;
    TORCH_CHECK_VALUE(parameter.value().scalar_type() == at::kFloat, options_.name, ": parameter '", parameter.key(),
                      "' is ", parameter.value().scalar_type(), ", but must be float32 to be trained");
    names.push_back(parameter.key());
    trained.push_back(parameter.value());
  }
  TORCH_CHECK_VALUE(!trained.empty(), options_.name, ": none of its ", parameters().size(), " parameters requires a ",
                    "gradient: there is nothing to train (torch.jit.freeze turns parameters into constants)");
  const at::Tensor loss = forward(batch);
  TORCH_CHECK_VALUE(loss.requires_grad(), options_.name, ": its loss depends on no parameter that requires a gradient");
  std::vector<at::Tensor> gradients;
  try {
    gradients = torch::autograd::grad({loss}, trained, {}, std::nullopt, /*create_graph=*/false, /*allow_unused=*/true);
  } catch (const std::exception& error) {
    TORCH_CHECK_VALUE(false, options_.name, ": its backward pass failed: ", reason_of(error));
  }
  std::vector<std::string> without_gradient;
  for (size_t i = 0; i < gradients.size(); ++i) {
    TORCH_CHECK_VALUE(!gradients[i].defined() || gradients[i].layout() == at::kStrided, options_.name, ": parameter '",
                      names[i], "' gets sparse gradients, which cannot be exchanged; create its embedding with ",
                      "sparse=False");
    if (!gradients[i].defined()) {
      without_gradient.push_back(names[i]);
    }
  }
  return without_gradient;
}

}  // namespace narrowcast::models
