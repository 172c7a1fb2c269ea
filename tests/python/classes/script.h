// Scripts that use the classes.
#pragma once

#include <ATen/core/Dict.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <torch/csrc/jit/api/compilation_unit.h>
#include <torch/csrc/jit/frontend/resolver.h>
#include <torch/custom_class.h>

#include <exception>
#include <map>
#include <memory>
#include <string>

namespace narrowcast::classes {

using GivenOptions = std::map<std::string, c10::IValue>;

inline c10::impl::GenericDict to_option_dict(const GivenOptions& given) {
  c10::impl::GenericDict options(c10::StringType::get(), c10::AnyType::get());
  for (const auto& [option, value] : given) options.insert(option, value);
  return options;
}

// Resolves the names of the classes, which Python finds in torch.classes.narrowcast.
struct ClassResolver : torch::jit::NativeResolver {
  std::shared_ptr<torch::jit::SugaredValue> resolveValue(const std::string& name, torch::jit::GraphFunction& function,
                                                         const torch::jit::SourceRange& place) override {
    const auto type = class_of(name);
    return type ? std::make_shared<torch::jit::ClassValue>(type) : NativeResolver::resolveValue(name, function, place);
  }
  c10::TypePtr resolveType(const std::string& name, const torch::jit::SourceRange& /*place*/) override {
    return class_of(name);
  }

 private:
  static c10::ClassTypePtr class_of(const std::string& name) {
    return torch::getCustomClass("__torch__.torch.classes.narrowcast." + name);
  }
};

// The functions of a script.
inline std::shared_ptr<torch::jit::CompilationUnit> compile(const char* source) {
  auto unit = std::make_shared<torch::jit::CompilationUnit>();
  unit->define(std::nullopt, source, std::make_shared<ClassResolver>(), nullptr);
  return unit;
}

// The error text of the script that `body` runs.
template <class Body>
std::string script_error(const Body& body) {
  try {
    body();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace narrowcast::classes
