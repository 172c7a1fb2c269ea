// A small module with random properties: types, shared, frozen and unused parameters, buffers.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/trainer/ddp/resume/draws.h"

namespace narrowcast::testing {

// y + tanh(y W^T + b)
struct DrawnLayer {
  at::ScalarType dtype = at::kFloat;
  bool has_bias = true;
  bool is_frozen = false;
  bool is_twice = false;     // Its weight is used a second time, so that two gradients are added.
  bool is_optional = false;  // Only some passes use it.
};

struct DrawnNetOptions {
  int64_t width = 8;
  std::vector<DrawnLayer> layers = {};  // The first one is used in every pass and gets gradients.
  bool has_gain = false;                // A parameter without dimensions.
  bool has_cube = false;                // A parameter of three dimensions.
  bool has_unused = false;              // Two parameters that no pass uses.
  bool has_buffer = false;              // A running mean of the inputs, on which outputs depend.
};

// `optional`: some passes may leave parameters out; `unused`: all passes may leave parameters out.
struct DrawnNetLimits {
  bool optional = false;
  bool unused = false;
  std::vector<at::ScalarType> dtypes = {at::kFloat};
};
DrawnNetOptions draw_net(Draws& draws, const DrawnNetLimits& limits);
std::string text_of(const DrawnNetOptions& options);

class DrawnNet : public torch::nn::Module {
 public:
  // The same options and seed give the same parameters.
  DrawnNet(const DrawnNetOptions& options, uint64_t seed);

  // float32 [B, width] to [B, width]. Bit i of `used`: whether layer i is used if it is optional.
  at::Tensor forward(const at::Tensor& inputs, uint64_t used);

 private:
  at::Tensor add_parameter(const std::string& name, at::IntArrayRef sizes, const DrawnLayer& like);

  const DrawnNetOptions options_;
  uint64_t seed_;
  std::vector<at::Tensor> weights_;
  std::vector<at::Tensor> biases_;  // Undefined where a layer has none.
  at::Tensor gain_;
  at::Tensor cube_;
  at::Tensor running_mean_;
};

}  // namespace narrowcast::testing
