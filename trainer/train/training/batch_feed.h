// Brings batches to the device that computes, while it still computes with the one before.
#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <optional>
#include <vector>

#include <narrowcast/model.h>
#include "trainer/train/data/dataset.h"

namespace narrowcast::training {

// The batch with its tensors on `device`; itself if they are there.
models::Batch on_device(const models::Batch& batch, at::Device device);

// One batch ahead. For a GPU, batches are put in pinned memory and copied on a stream of their own; the stream that
// computes waits for the copy, the host does not. Not thread-safe.
class BatchFeed {
 public:
  // Keeps a reference to the data set.
  BatchFeed(const data::Dataset& dataset, at::Device device);

  // Makes the batch of these training samples, and has it copied. Throws as Dataset::training_batch does.
  void prepare(const std::vector<int64_t>& samples);

  // The batch that was prepared, for the device's current stream. Throws c10::Error if there is none.
  models::Batch take();

 private:
  const data::Dataset& dataset_;
  const at::Device device_;
  std::optional<c10::Stream> copies_;  // none for the CPU
  std::optional<c10::Event> copied_;
  std::optional<models::Batch> next_;
};

}  // namespace narrowcast::training
