#include "tests/trainer/ddp/resume/drawn_net.h"

#include <ATen/ATen.h>

#include <sstream>

#include "tests/trainer/ddp/all/ddp_fixtures.h"

namespace narrowcast::testing {

DrawnNetOptions draw_net(Draws& draws, const DrawnNetLimits& limits) {
  DrawnNetOptions options;
  options.width = draws.one_of<int64_t>({4, 13, 16, 40});
  const int64_t layers = draws.in(1, 4);
  for (int64_t i = 0; i < layers; ++i) {
    DrawnLayer layer;
    layer.dtype = draws.once_in(6) ? draws.one_of(limits.dtypes) : limits.dtypes.at(0);
    layer.has_bias = !draws.once_in(3);
    layer.is_twice = draws.once_in(4);
    layer.is_frozen = i > 0 && draws.once_in(6);
    layer.is_optional = i > 0 && limits.optional && draws.once_in(2);
    options.layers.push_back(layer);
  }
  options.has_gain = draws.once_in(3);
  options.has_cube = draws.once_in(3);
  options.has_unused = limits.unused && draws.once_in(2);
  options.has_buffer = draws.once_in(3);
  return options;
}

std::string text_of(const DrawnNetOptions& options) {
  std::ostringstream text;
  text << "width " << options.width << ", layers";
  for (const DrawnLayer& layer : options.layers) {
    text << " (" << layer.dtype << (layer.has_bias ? " bias" : "") << (layer.is_frozen ? " frozen" : "")
         << (layer.is_twice ? " twice" : "") << (layer.is_optional ? " optional" : "") << ")";
  }
  text << (options.has_gain ? ", gain" : "") << (options.has_cube ? ", cube" : "")
       << (options.has_unused ? ", unused" : "") << (options.has_buffer ? ", buffer" : "");
  return text.str();
}

DrawnNet::DrawnNet(const DrawnNetOptions& options, uint64_t seed) : options_(options), seed_(seed) {
  const int64_t width = options.width;
  for (size_t i = 0; i < options.layers.size(); ++i) {
    const DrawnLayer& layer = options.layers[i];
    const std::string name = "layer" + std::to_string(i);
    weights_.push_back(add_parameter(name + "_weight", {width, width}, layer));
    biases_.push_back(layer.has_bias ? add_parameter(name + "_bias", {width}, layer) : at::Tensor());
  }
  if (options.has_gain) gain_ = add_parameter("gain", {}, {});
  if (options.has_cube) cube_ = add_parameter("cube", {3, width, width}, {});
  if (options.has_unused) {
    add_parameter("unused_matrix", {width, 3}, {});
    add_parameter("unused_vector", {5}, {});
  }
  if (options.has_buffer) running_mean_ = register_buffer("running_mean", at::zeros({width}));
}

at::Tensor DrawnNet::add_parameter(const std::string& name, at::IntArrayRef sizes, const DrawnLayer& like) {
  const at::Tensor value = seeded_randn(++seed_, sizes) / 4;
  return register_parameter(name, value.to(like.dtype), /*requires_grad=*/!like.is_frozen);
}

at::Tensor DrawnNet::forward(const at::Tensor& inputs, uint64_t used) {
  at::Tensor y = inputs;
  for (size_t i = 0; i < weights_.size(); ++i) {
    if (options_.layers[i].is_optional && (used >> i & 1) == 0) continue;
    for (int times = options_.layers[i].is_twice ? 2 : 1; times > 0; --times) {
      at::Tensor product = at::matmul(y.to(weights_[i].scalar_type()), weights_[i].t());
      if (biases_[i].defined()) product = product + biases_[i];
      y = y + at::tanh(product).to(at::kFloat);
    }
  }
  if (gain_.defined()) y = y * (1 + gain_);
  if (cube_.defined()) y = y + at::matmul(y, cube_.sum(0)) / 8;
  if (running_mean_.defined()) {
    if (at::GradMode::is_enabled()) running_mean_.mul_(0.75).add_(inputs.mean(0), 0.25);
    y = y + running_mean_;
  }
  return y;
}

}  // namespace narrowcast::testing
