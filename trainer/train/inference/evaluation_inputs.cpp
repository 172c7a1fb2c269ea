#include "trainer/train/evaluation/script_model.h"

#include <ATen/ATen.h>

#include <utility>

namespace narrowcast::evaluation {
namespace {

// What TorchScript says is many lines long; the last one tells the reason.
std::string last_line(const std::string& text) {
  const size_t end = text.find_last_not_of(" \n");
  const size_t begin = text.rfind('\n', end);
  return text.substr(begin == std::string::npos ? 0 : begin + 1, end - begin);
}

}  // namespace

ScriptModel::ScriptModel(torch::jit::Module module, std::string name)
    : Model("ScriptModel"), module_(std::move(module)), name_(std::move(name)) {}

at::Tensor ScriptModel::logits(const at::Tensor& inputs) {
  c10::IValue output;
  try {
    output = module_.forward({inputs});
  } catch (const std::exception& error) {
    TORCH_CHECK_VALUE(false, name_, ": its forward failed on inputs of shape ", inputs.sizes(), ": ",
                      last_line(error.what()));
  }
  TORCH_CHECK_VALUE(output.isTensor() && output.toTensor().is_floating_point(), name_,
                    ": its forward must return a tensor of logits, but returns ", output.tagKind());
  const at::Tensor logits = output.toTensor();
  TORCH_CHECK_VALUE(logits.dim() >= 2 && logits.size(0) == inputs.size(0), name_,
                    ": its forward must return logits of shape [batch, ..., classes], but for inputs of shape ",
                    inputs.sizes(), " it returns ", logits.sizes());
  return logits;
}

at::Tensor ScriptModel::forward(const models::Batch& batch) {
  const at::Tensor rows = logits(batch.inputs).flatten(0, -2);
  const at::Tensor targets = batch.targets.flatten();
  TORCH_CHECK_VALUE(rows.size(0) == targets.size(0), name_,
                    ": its forward must return one row of logits per target, but ", "returns ", rows.size(0),
                    " rows for ", targets.size(0), " targets");
  TORCH_CHECK_VALUE(targets.max().item<int64_t>() < rows.size(1), name_, ": has logits for ", rows.size(1),
                    " classes, but the data has a target ", targets.max().item<int64_t>());
  return at::cross_entropy_loss(rows.to(at::kFloat), targets);
}

}  // namespace narrowcast::evaluation
