#include "models/imported/imported_model.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/autograd.h>

#include <utility>

#include "ops/common/enumerator_names.h"
#include "ops/common/error_message.h"

namespace narrowcast::models {
namespace {

constexpr EnumeratorNames<Loss, 3> kLossNames{
    "loss",
    "Loss",
    {{{Loss::kCrossEntropy, "cross_entropy"}, {Loss::kMse, "mse"}, {Loss::kBceWithLogits, "bce_with_logits"}}}};

}  // namespace

Loss parse_loss(const std::string& name) { return kLossNames.parse(name); }

std::string to_string(Loss loss) { return std::string(kLossNames.name_of(loss)); }

std::string loss_names() { return kLossNames.joined(" or "); }

at::Tensor accuracy_of(const at::Tensor& logits, const at::Tensor& targets) {
  return logits.argmax(1).eq(targets).to(at::kDouble).mean();
}

ImportedModel::ImportedModel(const char* kind, std::string path, std::optional<Loss> loss,
                             std::vector<std::string> vocabulary)
    : Model(kind), path_(std::move(path)), loss_(loss), vocabulary_(std::move(vocabulary)) {}

std::string ImportedModel::reason_of(const std::exception& error) const { return first_line(error_message(error)); }

void ImportedModel::check_targets(const at::Tensor& targets) const {
  if (loss_ != Loss::kBceWithLogits) return;
  const auto least = targets.min().item<float>();
  const auto most = targets.max().item<float>();
  TORCH_CHECK_VALUE(least >= 0 && most <= 1,
                    "loss: bce_with_logits needs targets in 0..1, but the data has targets from ", least, " to ", most);
}

void ImportedModel::check_classes(int64_t classes, const at::Tensor& targets) const {
  if (expected_classes_.has_value()) {
    TORCH_CHECK_VALUE(*expected_classes_ <= classes, path_, ": returns logits for ", classes,
                      " classes, but the data needs ", *expected_classes_);
  } else if (targets.is_cpu()) {  // Reading them from a GPU would wait for it.
    TORCH_CHECK_VALUE(targets.min().item<int64_t>() >= 0, "loss: cross_entropy needs classes from 0 as targets, ",
                      "but the data has a target ", targets.min().item<int64_t>());
    TORCH_CHECK_VALUE(targets.max().item<int64_t>() < classes, path_, ": returns logits for ", classes,
                      " classes, but the data has a target ", targets.max().item<int64_t>());
  }
}

std::vector<std::string> ImportedModel::check_trains(const Batch& batch) {
  std::vector<std::string> names;
  std::vector<at::Tensor> trained;
  for (const auto& parameter : named_parameters()) {
    if (!parameter.value().requires_grad()) continue;
    TORCH_CHECK_VALUE(parameter.value().scalar_type() == at::kFloat, path_, ": parameter '", parameter.key(), "' is ",
                      parameter.value().scalar_type(), ", but must be float32 to be trained");
    names.push_back(parameter.key());
    trained.push_back(parameter.value());
  }
  TORCH_CHECK_VALUE(!trained.empty(), path_, ": none of its ", parameters().size(), " parameters requires a ",
                    "gradient: there is nothing to train", reason_without_gradients());
  const at::Tensor loss = forward(batch);
  TORCH_CHECK_VALUE(loss.requires_grad(), path_, ": its loss depends on no parameter that requires a gradient");
  std::vector<at::Tensor> gradients;
  try {
    gradients = torch::autograd::grad({loss}, trained, {}, std::nullopt, /*create_graph=*/false, /*allow_unused=*/true);
  } catch (const std::exception& error) {
    TORCH_CHECK_VALUE(false, path_, ": its backward pass failed: ", reason_of(error));
  }
  std::vector<std::string> without_gradient;
  for (size_t i = 0; i < gradients.size(); ++i) {
    TORCH_CHECK_VALUE(!gradients[i].defined() || gradients[i].layout() == at::kStrided, path_, ": parameter '",
                      names[i],
                      "' gets sparse gradients, which cannot be exchanged; create its embedding with sparse=False");
    if (!gradients[i].defined()) {
      without_gradient.push_back(names[i]);
    }
  }
  return without_gradient;
}

}  // namespace narrowcast::models
