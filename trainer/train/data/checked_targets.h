// Targets that are looked at before they go to a device that nobody asks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "trainer/train/data/dataset.h"

namespace narrowcast::data {

// Another data set, the targets of whose batches are checked as they are made, on the CPU.
class CheckedTargets : public Dataset {
 public:
  // Throws for targets that must not be.
  using Check = std::function<void(const at::Tensor& targets)>;

  CheckedTargets(std::unique_ptr<Dataset> dataset, Check check);

  int64_t training_size() const override { return dataset_->training_size(); }
  int64_t held_out_size() const override { return dataset_->held_out_size(); }
  // Throw as the other data set does, and as the check does.
  models::Batch training_batch(at::IntArrayRef indices) const override;
  models::Batch held_out_batch(at::IntArrayRef indices) const override;
  std::optional<int64_t> class_bound() const override { return dataset_->class_bound(); }

 private:
  models::Batch checked(models::Batch batch) const;

  const std::unique_ptr<Dataset> dataset_;
  const Check check_;
};

}  // namespace narrowcast::data
