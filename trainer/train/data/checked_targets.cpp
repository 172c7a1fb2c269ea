#include "trainer/train/data/checked_targets.h"

#include <utility>

namespace narrowcast::data {

CheckedTargets::CheckedTargets(std::unique_ptr<Dataset> dataset, Check check)
    : dataset_(std::move(dataset)), check_(std::move(check)) {}

models::Batch CheckedTargets::checked(models::Batch batch) const {
  check_(batch.targets);
  return batch;
}

models::Batch CheckedTargets::training_batch(at::IntArrayRef indices) const {
  return checked(dataset_->training_batch(indices));
}

models::Batch CheckedTargets::held_out_batch(at::IntArrayRef indices) const {
  return checked(dataset_->held_out_batch(indices));
}

}  // namespace narrowcast::data
