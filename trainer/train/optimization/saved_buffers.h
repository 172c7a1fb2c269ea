// Copies of a module's buffers, from which they can be restored.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <vector>

namespace narrowcast::training {

// A forward pass in training mode writes buffers, e.g. the running averages of batch norm. The copies take as much
// memory as the buffers, on the same devices. They are in lists of one dtype and device, so that a GPU copies each list
// with one kernel.
class SavedBuffers {
 public:
  // Finds the buffers, of any dtype. A tensor that is registered several times counts once. Nothing is copied yet.
  explicit SavedBuffers(const torch::nn::Module& module);

  // Copies the buffers, in place of what was saved before. Nothing waits for a GPU.
  void save();

  // Writes what save() copied last into the buffers, in place. Before the first save() it does nothing.
  void restore() const;

 private:
  struct List {
    std::vector<at::Tensor> buffers;
    std::vector<at::Tensor> copies;
  };
  std::vector<List> lists_;
};

}  // namespace narrowcast::training
