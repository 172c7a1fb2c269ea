#include "models/imported/script_model.h"

#include <ATen/ATen.h>
#include <ATen/core/function_schema.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <exception>
#include <string_view>
#include <utility>

#include "ops/common/error_message.h"

namespace narrowcast::models {
namespace {

// The sizes without dimensions of size 1.
std::vector<int64_t> long_dimensions(at::IntArrayRef sizes) {
  std::vector<int64_t> dimensions = sizes.vec();
  std::erase(dimensions, 1);
  return dimensions;
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
    : ImportedModel("ScriptModel", std::move(options.name), options.loss, std::move(options.vocabulary)),
      module_(std::move(module)) {
  const bool has_loss = returns_loss(module_, path());
  const std::string forward = signature(module_.get_method("forward").function().getSchema());
  TORCH_CHECK_VALUE(has_loss || loss().has_value(), "loss: must be ", loss_names(), " for ", path(), ", whose ",
                    forward, " takes no targets and returns predictions");
  TORCH_CHECK_VALUE(!has_loss || !loss().has_value(), "loss: has no effect with ", path(), ", whose ", forward,
                    " returns the loss itself");
  state_.emplace(module_, *this, path());
  train(module_.is_training());
}

// TorchScript's message first has the place, line by line, and then the reason, which may have many lines.
std::string ScriptModel::reason_of(const std::exception& error) const {
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

at::Tensor ScriptModel::run(std::vector<c10::IValue> arguments) {
  const char* const returned = loss() == Loss::kCrossEntropy ? "logits"
                               : loss().has_value()          ? "predictions"
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
    TORCH_CHECK_VALUE(false, path(), ": its forward failed on inputs of shape ", at::IntArrayRef(shape), ": ",
                      reason_of(error));
  }
  pass.keep();
  TORCH_CHECK_VALUE(output.isTensor() && output.toTensor().is_floating_point(), path(),
                    ": its forward must return a tensor of ", returned, ", but returns ", output.tagKind(),
                    output.isTensor() ? c10::str(" of ", output.toTensor().scalar_type()) : "");
  return output.toTensor();
}

std::vector<at::Tensor> ScriptModel::embeddings_and_heads() const {
  std::vector<at::Tensor> weights;
  for (const torch::jit::Module& module : module_.modules()) {
    const auto name = module.type()->name();  // TorchScript puts a number before "Embedding" if there are several.
    const bool is_embedding =
        name && name->name() == "Embedding" && name->prefix().find("torch.nn.modules.sparse") != std::string::npos;
    if (is_embedding && module.hasattr("weight")) {
      weights.push_back(module.attr("weight").toTensor());
    }
  }
  return weights;
}

at::Tensor ScriptModel::predictions(const at::Tensor& inputs) { return run({inputs}); }

at::Tensor ScriptModel::logits(const at::Tensor& inputs) {
  at::Tensor logits = predictions(inputs);
  TORCH_CHECK_VALUE(logits.dim() >= 2 && logits.size(0) == inputs.size(0), path(),
                    ": its forward must return logits of shape [batch, ..., classes], but for inputs of shape ",
                    inputs.sizes(), " it returns ", logits.sizes());
  return logits;
}

ScriptModel::ClassRows ScriptModel::class_rows(const Batch& batch) {
  TORCH_CHECK_VALUE(batch.targets.scalar_type() == at::kLong, "loss: cross_entropy needs int64 classes as targets, ",
                    "but the data has ", batch.targets.scalar_type());
  const at::Tensor all = logits(batch.inputs);
  TORCH_CHECK_VALUE(long_dimensions(all.sizes().slice(0, all.dim() - 1)) == long_dimensions(batch.targets.sizes()),
                    path(), ": its forward must return one row of logits per target, classes last, but returns ",
                    all.sizes(), " for targets of shape ", batch.targets.sizes());
  ClassRows rows = {.logits = all.flatten(0, -2).to(at::kFloat), .targets = batch.targets.flatten()};
  check_classes(rows.logits.size(1), rows.targets);
  return rows;
}

at::Tensor ScriptModel::loss_of_values(const Batch& batch) {
  const at::Tensor values = predictions(batch.inputs);
  TORCH_CHECK_VALUE(values.dim() >= 1 && values.size(0) == batch.targets.size(0) &&
                        long_dimensions(values.sizes()) == long_dimensions(batch.targets.sizes()),
                    path(), ": its forward must return one prediction per target for the loss ", to_string(*loss()),
                    ", in the same shape, but returns ", values.sizes(), " for targets of shape ",
                    batch.targets.sizes());
  const at::Tensor targets = batch.targets.to(at::kFloat).reshape(values.sizes());
  if (loss() == Loss::kMse) {
    return at::mse_loss(values.to(at::kFloat), targets);
  }
  if (targets.is_cpu()) {
    check_targets(targets);
  }
  return at::binary_cross_entropy_with_logits(values.to(at::kFloat), targets);
}

at::Tensor ScriptModel::forward(const Batch& batch) {
  if (loss() == Loss::kCrossEntropy) {
    const ClassRows rows = class_rows(batch);
    return at::cross_entropy_loss(rows.logits, rows.targets, /*weight=*/{}, at::Reduction::Mean, /*ignore_index=*/-100,
                                  label_smoothing());
  }
  if (loss().has_value()) {
    return loss_of_values(batch);
  }
  const at::Tensor loss = run({batch.inputs, batch.targets});
  TORCH_CHECK_VALUE(loss.numel() == 1, path(), ": its forward must return one number, the loss, but returns ",
                    loss.sizes());
  return loss.to(at::kFloat).reshape({});
}

Evaluated ScriptModel::evaluate(const Batch& batch) {
  if (loss() != Loss::kCrossEntropy) {
    return {.loss = forward(batch)};
  }
  const ClassRows rows = class_rows(batch);
  return {.loss = at::cross_entropy_loss(rows.logits, rows.targets),
          .accuracy = accuracy_of(rows.logits, rows.targets)};
}

}  // namespace narrowcast::models
