// Trainable TorchScript modules made from source, without Python. They classify images of 8 x 8.
#pragma once

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <torch/csrc/jit/api/module.h>

#include <memory>
#include <string>

namespace narrowcast::testing {

// N(0, 0.1^2), the same in every process.
inline at::Tensor initial_weight(at::IntArrayRef sizes) {
  return (at::randn(sizes, at::detail::createCPUGenerator(7)) / 10).requires_grad_();
}

// A module with a training mode, like modules saved by Python.
inline torch::jit::Module trained_module(const std::shared_ptr<torch::jit::CompilationUnit>& unit,
                                         const std::string& name) {
  torch::jit::Module module(c10::QualifiedName("__torch__." + name), unit, /*shouldMangle=*/true);
  module.register_attribute("training", c10::BoolType::get(), true);
  return module;
}

inline constexpr const char* kPredicts =
    "def forward(self, images: Tensor) -> Tensor:\n"
    "    return self.logits(images)\n";
inline constexpr const char* kGivesLoss =
    "def forward(self, images: Tensor, targets: Tensor) -> Tensor:\n"
    "    return torch.cross_entropy_loss(self.logits(images), targets)\n";

// Images, uint8 [B, 8, 8], to logits [B, 10]: two linear layers with a batch norm, x * sigmoid(x) and dropout between
// them. The executor's optimisations round x * sigmoid(x) differently than separate operators do.
inline torch::jit::Module digit_net(const std::string& forward = kPredicts) {
  const auto unit = std::make_shared<torch::jit::CompilationUnit>();
  torch::jit::Module net = trained_module(unit, "DigitNet");
  torch::jit::Module first = trained_module(unit, "First");
  first.register_parameter("weight", initial_weight({32, 64}), /*is_buffer=*/false);
  first.register_parameter("bias", at::zeros({32}).requires_grad_(), /*is_buffer=*/false);
  torch::jit::Module norm = trained_module(unit, "Norm");
  norm.register_parameter("weight", at::ones({32}).requires_grad_(), /*is_buffer=*/false);
  norm.register_parameter("bias", at::zeros({32}).requires_grad_(), /*is_buffer=*/false);
  norm.register_buffer("running_mean", at::zeros({32}));
  norm.register_buffer("running_var", at::ones({32}));
  norm.define(
      "def forward(self, x: Tensor) -> Tensor:\n"
      "    return torch.batch_norm(x, self.weight, self.bias, self.running_mean, self.running_var, self.training, 0.1, "
      "1e-5, False)\n");
  torch::jit::Module second = trained_module(unit, "Second");
  second.register_parameter("weight", initial_weight({10, 32}), /*is_buffer=*/false);
  second.register_parameter("bias", at::zeros({10}).requires_grad_(), /*is_buffer=*/false);
  net.register_module("first", first);
  net.register_module("norm", norm);
  net.register_module("second", second);
  net.define(
      "def logits(self, images: Tensor) -> Tensor:\n"
      "    x = torch.linear(images.flatten(1).float() / 255., self.first.weight, self.first.bias)\n"
      "    x = self.norm.forward(x)\n"
      "    x = torch.dropout(x * torch.sigmoid(x) * 2., 0.25, self.training)\n"
      "    return torch.linear(x, self.second.weight, self.second.bias)\n");
  net.define(forward);
  return net;
}

// The same; it also counts its passes and keeps a moving average of its 64 pixels, in buffers that it reassigns.
inline torch::jit::Module averaging_digit_net() {
  torch::jit::Module net = trained_module(std::make_shared<torch::jit::CompilationUnit>(), "AveragingDigitNet");
  net.register_module("net", digit_net());
  net.register_buffer("seen", at::zeros({}, at::kLong));
  net.register_buffer("average", at::zeros({64}));
  net.define(
      "def forward(self, images: Tensor) -> Tensor:\n"
      "    logits = self.net.forward(images) + self.average.mean()\n"
      "    if self.training:\n"
      "        self.seen = self.seen + 1\n"
      "        self.average = self.average * 0.75 + images.flatten(1).float().mean(0) * 0.25\n"
      "    return logits\n");
  return net;
}

// The same; from its fifth training pass on, each rank changes a parameter by different random numbers.
inline torch::jit::Module drifting_digit_net() {
  torch::jit::Module net = trained_module(std::make_shared<torch::jit::CompilationUnit>(), "DriftingDigitNet");
  net.register_module("net", digit_net());
  net.register_buffer("passes", at::zeros({}, at::kLong));
  net.define(
      "def forward(self, images: Tensor) -> Tensor:\n"
      "    if self.training:\n"
      "        self.passes = self.passes + 1\n"
      "        if int(self.passes) > 4:\n"
      "            self.net.second.bias.detach().add_(torch.rand([10]) * 0.001)\n"
      "    return self.net.forward(images)\n");
  return net;
}

// The same, with a separate layer for batches whose pixels have an even sum.
inline torch::jit::Module branching_digit_net() {
  torch::jit::Module net = trained_module(std::make_shared<torch::jit::CompilationUnit>(), "BranchingDigitNet");
  net.register_module("net", digit_net());
  net.register_parameter("even", initial_weight({10, 10}), /*is_buffer=*/false);
  net.define(
      "def forward(self, images: Tensor) -> Tensor:\n"
      "    logits = self.net.forward(images)\n"
      "    if int(images.long().sum()) % 2 == 0:\n"
      "        logits = logits + torch.linear(logits, self.even)\n"
      "    return logits\n");
  return net;
}

// The same, with unused parameters.
inline torch::jit::Module leftover_digit_net() {
  torch::jit::Module net = trained_module(std::make_shared<torch::jit::CompilationUnit>(), "LeftoverDigitNet");
  net.register_module("net", digit_net());
  for (int i = 1; i <= 7; ++i) {
    net.register_parameter("leftover" + std::to_string(i), initial_weight({10}), /*is_buffer=*/false);
  }
  net.define(
      "def forward(self, images: Tensor) -> Tensor:\n"
      "    return self.net.forward(images)\n");
  return net;
}

}  // namespace narrowcast::testing
