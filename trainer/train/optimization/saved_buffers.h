// Copies of a module's buffers, to restore them later.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <vector>

namespace narrowcast::training {

// A forward pass in training mode writes buffers, e.g. the running averages of batch norm. The copies take the same
// memory as the buffers, on the same devices. They are in lists of one dtype and device, so that a GPU copies each list
// with one kernel.
class SavedBuffers {
 public:
  // Finds the buffers, of any dtype. A tensor that is registered several times counts once. Copies nothing yet.
  explicit SavedBuffers(const torch::nn::Module& module);

  // Copies the buffers, replacing earlier copies. Does not wait for a GPU.
  void save();

  // Writes the copies of the last save() back into the buffers, in place. Before the first save() it does nothing.
  void restore() const;

 private:
  struct List {
    std::vector<at::Tensor> buffers;
    std::vector<at::Tensor> copies;
  };
  std::vector<List> lists_;
};

}  // namespace narrowcast::training
