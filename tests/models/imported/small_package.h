// A model package that is written without Python. Its compiled graphs are small_graph.cpp.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include <narrowcast/model.h>

namespace narrowcast::testing {

// Records of an archive by name.
using Records = std::map<std::string, std::string>;

// Writes an archive of PyTorch and returns its path.
std::string write_archive(const std::string& path, const Records& records);

// The bytes of a safetensors file.
std::string safetensors_of(const std::map<std::string, at::Tensor>& tensors);

// Linear classification: inputs, float32 [B, 4], to logits [B, 3]. Tests change the members.
//
//   logits = (inputs * scale) (layers.0.weight + layers.0.shift)^T + layers.0.bias + offset
//   loss = cross_entropy(logits, targets) + sum(pair.first * pair.second) + mean(level) + sum(drift * current)
//
// `scale` is frozen, the loss does not depend on `spare`, and head.weight is a second name of layers.0.weight. A
// training step increases `steps`, and moves `current` to `previous` and the mean of the inputs to `current`, which is
// not persistent. The gradients of weight and shift are one tensor, which is not contiguous. The gradients of
// pair.first, pair.second and drift, and the new value of `previous`, are inputs of the graph. It reports gradients
// before it ends, and then uses the memory of the reported gradient of layers.0.bias again. If targets are float32 [B,
// 3], their mean squared error takes the place of the cross entropy.
struct SmallPackage {
  SmallPackage();

  // The entry of a tensor in the manifest's `state`.
  nlohmann::json& state(const std::string& name);
  // Targets of this loss, float32 [B, 3].
  void take_values(const std::string& loss);

  // The manifest with the number of bytes of the weights, unless a test has set it.
  std::string manifest_text() const;
  Records records() const;
  // The same with `library` in place of the libraries, for tests that do not load them.
  Records records(const std::string& library) const;
  std::string write(const std::string& path) const { return write_archive(path, records()); }

  nlohmann::json manifest;
  std::map<std::string, at::Tensor> weights;
  std::string train = "train";  // a graph of small_graph.cpp
  std::string evaluate = "evaluate";
};

// The same loss in eager PyTorch, without the changes of buffers.
at::Tensor eager_loss(const std::map<std::string, at::Tensor>& state, const models::Batch& batch);
at::Tensor eager_logits(const std::map<std::string, at::Tensor>& state, const at::Tensor& inputs);

// A batch; equal seeds give equal batches.
models::Batch small_batch(uint64_t seed, int64_t samples = 6);

// The path of small_graph.cpp's library, which CMake writes into small_graph_path.cpp.
extern const char* const kSmallGraphPath;

}  // namespace narrowcast::testing
