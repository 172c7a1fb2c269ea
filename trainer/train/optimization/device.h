// The device of a rank, a model's random generators there, and transfer of batches to it while the rank still computes
// with the batch before.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <narrowcast/model.h>
#include <narrowcast/worker_env.h>
#include "trainer/train/data/dataset.h"

namespace narrowcast::training {

// The number of GPUs that this process can use: 0 without a driver, and in a build without CUDA.
int64_t gpu_count();

// The device that `name` means for this process:
//   - "cpu": the CPU.
//   - "cuda": the GPU whose number is the local rank.
//   - "cuda:N": GPU N on every rank with this name; several ranks can share one.
//   - "auto": as "cuda" if this node has a GPU for each of its ranks, else the CPU.
//
// Throws c10::ValueError for another name, or if that GPU does not exist.
at::Device choose_device(const std::string& name, const WorkerEnv& env);

// The process group's backend for tensors on `device`: `name` if that backend supports the device; for "auto", "nccl"
// on a GPU and "gloo" on the CPU. Throws c10::ValueError if the two contradict each other.
std::string choose_backend(const std::string& name, at::Device device);

// Waits for all work enqueued on `device`. Does nothing for the CPU.
void wait_for_device(at::Device device);

// Makes `device` the current one for this thread's CUDA calls. Does nothing for the CPU.
void use_device(at::Device device);

// The batch with its tensors on `device`; the batch itself if they are already there.
models::Batch on_device(const models::Batch& batch, at::Device device);

// The place of a rank's random draws in a training.
struct DrawSeed {
  uint64_t seed = 0;  // of the training
  int64_t rank = 0;
  int64_t step = 0;  // optimizer step, from 1; 0: passes outside a training
};

// Seeds LibTorch's generators, from which a model on `device` draws, for the forward passes of one optimizer step, e.g.
// for dropout. Ranks and steps have different draws, which follow from these numbers alone: whoever takes the place of
// `rank` draws the same in this step.
void seed_draws(at::Device device, const DrawSeed& seed);

// Calls `run`, which may let the model compute as in training, and then restores the model's buffers and LibTorch's
// generators. So trial passes have no lasting effect, and consecutive ones compute the same.
void on_trial(const torch::nn::Module& model, const std::function<void()>& run);

// Prepares one batch ahead. For a GPU, batches are put in pinned memory and copied on a separate stream. The computing
// stream waits for the copy, the host does not. Not thread-safe.
class BatchFeed {
 public:
  // Keeps a reference to the data set.
  BatchFeed(const data::Dataset& dataset, at::Device device);

  // Makes the batch of these training samples and starts its copy. Throws as Dataset::training_batch does.
  void prepare(const std::vector<int64_t>& samples);

  // The prepared batch, for the device's current stream. Throws c10::Error if no batch was prepared.
  models::Batch take();

 private:
  const data::Dataset& dataset_;
  const at::Device device_;
  std::optional<c10::Stream> copies_;  // none for the CPU
  std::optional<c10::Event> copied_;
  std::optional<models::Batch> next_;
};

}  // namespace narrowcast::training
