// Compiles TorchScript source in C++ that calls the project's operators.
#pragma once

#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/frontend/resolver.h>
#include <torch/csrc/jit/frontend/sugared_value.h>
#include <torch/csrc/jit/serialization/import.h>

#include <memory>
#include <sstream>
#include <string>

namespace narrowcast::test {

// Resolves `narrowcast` to the operators of that namespace, and `torch`.
struct OperatorResolver : torch::jit::NativeResolver {
  std::shared_ptr<torch::jit::SugaredValue> resolveValue(const std::string& name, torch::jit::GraphFunction& function,
                                                         const torch::jit::SourceRange& place) override {
    if (name == "narrowcast") return std::make_shared<torch::jit::BuiltinModule>(name);
    return NativeResolver::resolveValue(name, function, place);
  }
};

// A module with the methods that `source` defines.
inline torch::jit::Module compile(const std::string& source) {
  torch::jit::Module module("script");
  module.define(source, std::make_shared<OperatorResolver>());
  return module;
}

inline torch::jit::Module save_and_load(const torch::jit::Module& module) {
  std::stringstream file;
  module.save(file);
  return torch::jit::load(file);
}

// The executor still changes the code in the first two calls of a method.
inline constexpr int kRunsUntilSettled = 3;

}  // namespace narrowcast::test
