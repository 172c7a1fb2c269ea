// hook_steps FOLDER: trains with hooks on ranks that are threads, for comparison with PyTorch's
// DistributedDataParallel.
//
// FOLDER/case.json: world_size, steps, bucket_cap_mb, learning_rate, momentum, the sizes of the parameters, and hooks,
// each [name, options by their names]. FOLDER/numbers.bin, in float32: the parameters' first values, and then the
// gradients by step and rank. The program writes FOLDER/trained.bin: by hook, rank and step, the averaged gradients and
// then the parameters.
#include <ATen/ATen.h>
#include <torch/nn/module.h>
#include <torch/optim/sgd.h>

#include <cstdint>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include <narrowcast/ddp.h>
#include <narrowcast/hook_options.h>
#include "tests/support/ranks.h"

namespace narrowcast {
namespace {

using Json = nlohmann::json;
using Tensors = std::vector<at::Tensor>;  // By parameter.

// Gets the gradients that are given to forward.
class GivenGradients : public torch::nn::Module {
 public:
  explicit GivenGradients(const Tensors& values) {
    for (const at::Tensor& value : values) {
      weights_.push_back(register_parameter(std::to_string(weights_.size()), value.clone()));
    }
  }

  at::Tensor forward(const Tensors& gradients) {
    at::Tensor sum = at::zeros({});
    for (size_t i = 0; i < weights_.size(); ++i) sum = sum + (weights_[i] * gradients[i]).sum();
    return sum;
  }

 private:
  Tensors weights_;
};

struct Numbers {
  Tensors first;
  std::vector<std::vector<Tensors>> gradients;  // By step and rank.
};

Numbers read_numbers(const std::string& folder, const Json& given) {
  std::ifstream file(folder + "/numbers.bin", std::ios::binary);
  const auto read = [&] {
    Tensors tensors;
    for (const auto& size : given.at("sizes")) {
      const at::Tensor tensor = at::empty(size.get<std::vector<int64_t>>());
      file.read(static_cast<char*>(tensor.mutable_data_ptr()), static_cast<std::streamsize>(tensor.nbytes()));
      tensors.push_back(tensor);
    }
    return tensors;
  };
  Numbers numbers{read(), {}};
  for (int64_t step = 0; step < given.at("steps"); ++step) {
    auto& of_ranks = numbers.gradients.emplace_back();
    for (int64_t rank = 0; rank < given.at("world_size"); ++rank) of_ranks.push_back(read());
  }
  TORCH_CHECK(file.good(), "numbers.bin is too short");
  return numbers;
}

hooks::OptionValue to_option_value(const Json& value) {
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number_integer()) return value.get<int64_t>();
  if (value.is_number()) return value.get<double>();
  return value.get<std::string>();
}

DdpOptions to_ddp_options(const Json& given, const Json& hook) {
  hooks::HookOptions options;
  for (const auto& [name, value] : hook.at(1).items()) hooks::set_option(options, name, to_option_value(value));
  return DdpOptions()
      .hook(hook.at(0).get<std::string>())
      .hook_options(options)
      .bucket_cap_mb(given.at("bucket_cap_mb").get<double>());
}

// The averaged gradients and the parameters after each step.
Tensors train(const Json& given, const Json& hook, const Numbers& numbers, const ProcessGroupPtr& group) {
  DistributedDataParallel<std::shared_ptr<GivenGradients>> ddp(std::make_shared<GivenGradients>(numbers.first), group,
                                                               to_ddp_options(given, hook));
  const Tensors parameters = ddp.module()->parameters();
  torch::optim::SGD optimizer(
      parameters,
      torch::optim::SGDOptions(given.at("learning_rate").get<double>()).momentum(given.at("momentum").get<double>()));
  Tensors trained;
  for (const auto& of_ranks : numbers.gradients) {
    ddp.zero_grad();
    ddp.backward(ddp.forward(of_ranks.at(static_cast<size_t>(group->getRank()))));
    optimizer.step();
    for (const at::Tensor& parameter : parameters) trained.push_back(parameter.grad().clone());
    for (const at::Tensor& parameter : parameters) trained.push_back(parameter.detach().clone());
  }
  return trained;
}

void run(const std::string& folder) {
  std::ifstream file(folder + "/case.json");
  const Json given = Json::parse(file);
  const Numbers numbers = read_numbers(folder, given);
  const auto world_size = given.at("world_size").get<int64_t>();
  std::vector<std::vector<Tensors>> trained;  // By hook and rank.
  trained.resize(given.at("hooks").size(), std::vector<Tensors>(static_cast<size_t>(world_size)));
  testing::run_ranks(world_size, [&](int64_t rank, const ProcessGroupPtr& group) {
    for (size_t i = 0; i < trained.size(); ++i) {
      trained[i][static_cast<size_t>(rank)] = train(given, given.at("hooks").at(i), numbers, group);
    }
  });
  std::ofstream out(folder + "/trained.bin", std::ios::binary);
  for (const auto& of_ranks : trained) {
    for (const Tensors& tensors : of_ranks) {
      for (const at::Tensor& tensor : tensors) {
        out.write(static_cast<const char*>(tensor.const_data_ptr()), static_cast<std::streamsize>(tensor.nbytes()));
      }
    }
  }
}

}  // namespace
}  // namespace narrowcast

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) narrowcast::run(argv[i]);
  return 0;
}
