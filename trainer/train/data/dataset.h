// What the training loop asks of data.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include <narrowcast/model.h>

namespace narrowcast::data {

// Training and held-out samples, each addressed by its index, so that every rank can make any part of
// any batch from the data alone. Immutable after construction and so safe to use from several threads.
class Dataset {
 public:
  virtual ~Dataset() = default;

  // Number of training samples and of held-out samples, both at least 1.
  virtual int64_t training_size() const = 0;
  virtual int64_t held_out_size() const = 0;

  // The samples of the given indices as one batch, in their order. Indices may repeat. Throws
  // c10::ValueError for no indices or one that is not in 0..size-1.
  virtual models::Batch training_batch(at::IntArrayRef indices) const = 0;
  virtual models::Batch held_out_batch(at::IntArrayRef indices) const = 0;
};

// Throws c10::ValueError unless there are indices and each is in 0..size-1.
void check_indices(at::IntArrayRef indices, int64_t size);

}  // namespace narrowcast::data
