#include <narrowcast/mlp.h>

#include <ATen/ATen.h>
#include <torch/nn/modules/container/modulelist.h>

#include <array>

#include "models/bundled/options.h"

namespace narrowcast::models {
namespace {

std::span<const IntegerOption<MlpOptions>> mlp_options() {
  static constexpr std::array<IntegerOption<MlpOptions>, 4> table = {{
      {"inputs", &MlpOptions::inputs, 1, 16777216},
      {"hidden", &MlpOptions::hidden, 1, 65536},
      {"layers", &MlpOptions::layers, 0, 256},
      {"classes", &MlpOptions::classes, 1, 65536},
  }};
  return table;
}

// [B, ...] -> float32 [B, inputs]
at::Tensor to_rows(const at::Tensor& images, int64_t inputs) {
  TORCH_CHECK_TYPE(images.scalar_type() == at::kByte || images.is_floating_point(),
                   "mlp: images must be uint8 or floating, but are ", images.scalar_type());
  TORCH_CHECK_VALUE(images.dim() >= 2 && images.size(0) > 0 && images.numel() == images.size(0) * inputs,
                    "mlp: images must be a non-empty batch of inputs = ", inputs, " values each, but have the shape ",
                    images.sizes());
  const at::Tensor rows = images.flatten(1).to(at::kFloat);
  return images.scalar_type() == at::kByte ? rows / 255 : rows;
}

void check_targets(const Batch& batch) {
  TORCH_CHECK_TYPE(batch.targets.scalar_type() == at::kLong, "mlp: targets must be int64, but are ",
                   batch.targets.scalar_type());
  TORCH_CHECK_VALUE(batch.targets.dim() == 1 && batch.targets.size(0) == batch.inputs.size(0),
                    "mlp: targets must have one value per image, but images have the shape ", batch.inputs.sizes(),
                    " and targets ", batch.targets.sizes());
}

}  // namespace

Mlp::Mlp(const MlpOptions& options) : Model("Mlp"), shape_(options) {
  check_options(kName, mlp_options(), options);
  torch::nn::ModuleList layers = register_module("layers", torch::nn::ModuleList());
  int64_t width = shape_.inputs;
  for (int64_t layer = 0; layer <= shape_.layers; ++layer) {
    const int64_t outputs = layer < shape_.layers ? shape_.hidden : shape_.classes;
    layers_.emplace_back(width, outputs);
    layers->push_back(layers_.back());
    width = outputs;
  }
}

std::shared_ptr<Mlp> Mlp::create(const ModelOptions& options) {
  return std::make_shared<Mlp>(read_options(kName, mlp_options(), options));
}

int64_t Mlp::count_parameters(const ModelOptions& options) {
  const MlpOptions shape = read_options(kName, mlp_options(), options);
  check_options(kName, mlp_options(), shape);
  if (shape.layers == 0) {
    return linear_parameters(shape.inputs, shape.classes);
  }
  return linear_parameters(shape.inputs, shape.hidden) +
         (shape.layers - 1) * linear_parameters(shape.hidden, shape.hidden) +
         linear_parameters(shape.hidden, shape.classes);
}

std::vector<std::string> Mlp::option_names() { return models::option_names(mlp_options()); }

at::Tensor Mlp::logits(const at::Tensor& images) {
  announce(*layers_.front());
  at::Tensor x = layers_.front()(to_rows(images, shape_.inputs));
  for (size_t layer = 1; layer < layers_.size(); ++layer) {
    announce(*layers_[layer]);
    x = layers_[layer](x.relu());
  }
  return x;
}

at::Tensor Mlp::forward(const Batch& batch) {
  check_targets(batch);
  return at::cross_entropy_loss(logits(batch.inputs), batch.targets, /*weight=*/{}, at::Reduction::Mean,
                                /*ignore_index=*/-100, label_smoothing());
}

std::vector<at::Tensor> Mlp::embeddings_and_heads() const { return {layers_.back()->weight}; }

ModelOptions Mlp::options() const { return write_options(mlp_options(), shape_); }

}  // namespace narrowcast::models
