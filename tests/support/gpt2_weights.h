// Random weights with the layout of Hugging Face's GPT-2 files.
#pragma once

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace narrowcast::testing {

struct Gpt2Shape {
  int64_t layers = 2;
  int64_t width = 16;
  int64_t context = 8;
  int64_t vocabulary = 11;
};

// The tensors of `shape` under Hugging Face's names, N(0, 0.1^2), the same in every process. Weights of Conv1D are
// [inputs, outputs].
inline std::map<std::string, at::Tensor> gpt2_weights(const Gpt2Shape& shape = {}) {
  at::Generator generator = at::detail::createCPUGenerator(11);
  const auto random = [&](const std::vector<int64_t>& sizes) { return at::randn(sizes, generator) / 10; };
  const int64_t width = shape.width;
  std::map<std::string, at::Tensor> tensors = {{"wte.weight", random({shape.vocabulary, width})},
                                               {"wpe.weight", random({shape.context, width})},
                                               {"ln_f.weight", 1 + random({width})},
                                               {"ln_f.bias", random({width})}};
  for (int64_t layer = 0; layer < shape.layers; ++layer) {
    const std::string block = "h." + std::to_string(layer) + ".";
    for (const std::string norm : {"ln_1", "ln_2"}) {
      tensors[block + norm + ".weight"] = 1 + random({width});
      tensors[block + norm + ".bias"] = random({width});
    }
    const auto add_conv1d = [&](const std::string& name, int64_t inputs, int64_t outputs) {
      tensors[block + name + ".weight"] = random({inputs, outputs});
      tensors[block + name + ".bias"] = random({outputs});
    };
    add_conv1d("attn.c_attn", width, 3 * width);
    add_conv1d("attn.c_proj", width, width);
    add_conv1d("mlp.c_fc", width, 4 * width);
    add_conv1d("mlp.c_proj", 4 * width, width);
  }
  return tensors;
}

}  // namespace narrowcast::testing
