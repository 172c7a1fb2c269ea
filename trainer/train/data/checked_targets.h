// Targets that are checked on the CPU before they go to a device, which does not check them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "trainer/train/data/dataset.h"

namespace narrowcast::data {

// Wraps a data set, and checks the targets of each batch on the CPU when the batch is made.
class CheckedTargets : public Dataset {
 public:
  // Throws for invalid targets.
  using Check = std::function<void(const at::Tensor& targets)>;

  CheckedTargets(std::unique_ptr<Dataset> dataset, Check check);

  int64_t training_size() const override { return dataset_->training_size(); }
  int64_t held_out_size() const override { return dataset_->held_out_size(); }
  // Throw as the wrapped data set and the check do.
  models::Batch training_batch(at::IntArrayRef indices) const override;
  models::Batch held_out_batch(at::IntArrayRef indices) const override;
  std::optional<int64_t> class_bound() const override { return dataset_->class_bound(); }

 private:
  models::Batch checked(models::Batch batch) const;

  const std::unique_ptr<Dataset> dataset_;
  const Check check_;
};

}  // namespace narrowcast::data
