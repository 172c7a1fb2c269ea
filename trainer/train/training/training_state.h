// Everything that a training changes, into a checkpoint and back.
#pragma once

#include <torch/optim/optimizer.h>

#include <memory>

#include <narrowcast/ddp.h>
#include <narrowcast/model.h>
#include "trainer/train/checkpoint/content.h"
#include "trainer/train/data/sample_order.h"
#include "trainer/train/training/counters.h"
#include "trainer/train/training/gradient_scaler.h"

namespace narrowcast::training {

using ReplicatedModel = DistributedDataParallel<std::shared_ptr<models::Model>>;

// The parts of a training; none is owned.
struct TrainingParts {
  ReplicatedModel& model;
  torch::optim::Optimizer& optimizer;
  GradientScaler* scaler = nullptr;  // none without one
  const data::SampleOrder& order;
  int64_t batch_size = 1;  // samples per optimizer step
};

// Between steps, on every rank alike. Parameters, buffers and the optimizer's state are the replica's; with a hook that
// lets replicas differ each rank's own as well. The state of the hook and of LibTorch's generators is each rank's own.
// Learning rate and data follow from the step; the position in the data is in the manifest too. Tensors are the
// training's own, not copies.
checkpoint::Content save_training(const TrainingParts& parts, const Counters& counters);

// Makes a new training one that goes on from there, and returns its counters. Throws CorruptInputError naming the
// checkpoint and what is missing or does not fit.
Counters load_training(const checkpoint::Restored& restored, const TrainingParts& parts);

}  // namespace narrowcast::training
