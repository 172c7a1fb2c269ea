// TorchScript modules with Linear layers, named as Python's compiler names them.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/import.h>

#include <cstdint>
#include <memory>
#include <sstream>
#include <string>

#include "models/quantization/weight_only_int8.h"

namespace narrowcast::testing {

inline constexpr const char* kLinearForward =
    "def forward(self, input):\n    return torch.linear(input, self.weight, self.bias)\n";

using Unit = std::shared_ptr<torch::jit::CompilationUnit>;

inline Unit new_unit() { return std::make_shared<torch::jit::CompilationUnit>(); }

inline torch::jit::Module make_module(const Unit& unit, const std::string& name) {
  return torch::jit::Module(c10::QualifiedName("__torch__." + name), unit, /*shouldMangle=*/true);
}

inline torch::jit::Module make_linear(const Unit& unit, int64_t inputs, int64_t outputs,
                                      const char* forward = kLinearForward) {
  torch::jit::Module linear = make_module(unit, "torch.nn.modules.linear.Linear");
  linear.register_parameter("weight", at::randn({outputs, inputs}), /*is_buffer=*/false);
  linear.register_parameter("bias", at::randn({outputs}), /*is_buffer=*/false);
  linear.define(forward);
  return linear;
}

// first and second share a type, third has a separate one.
inline torch::jit::Module make_net(const std::string& forward =
                                       "def forward(self, x):\n"
                                       "    y = torch.relu(self.second.forward(torch.relu(self.first.forward(x))))\n"
                                       "    return self.inner.third.forward(y) + self.offset\n") {
  const Unit unit = new_unit();
  torch::jit::Module first = make_linear(unit, 8, 8);
  torch::jit::Module second(unit, first.type());
  second.setattr("weight", at::randn({8, 8}));
  second.setattr("bias", at::randn({8}));
  torch::jit::Module inner = make_module(unit, "Inner");
  inner.register_module("third", make_linear(unit, 8, 3));
  torch::jit::Module net = make_module(unit, "Net");
  net.register_module("first", first);
  net.register_module("second", second);
  net.register_module("inner", inner);
  net.register_buffer("offset", at::randn({3}));
  net.define(forward);
  return net;
}

inline torch::jit::Module save_and_load(const torch::jit::Module& module) {
  std::stringstream file;
  module.save(file);
  return torch::jit::load(file);
}

inline at::Tensor run(torch::jit::Module& module, const at::Tensor& x) { return module.forward({x}).toTensor(); }

inline models::StateDict state_of(const torch::jit::Module& module) {
  models::StateDict state;
  for (const auto& item : module.named_parameters()) state.emplace(item.name, item.value);
  for (const auto& item : module.named_buffers()) state.emplace(item.name, item.value);
  return state;
}

}  // namespace narrowcast::testing
