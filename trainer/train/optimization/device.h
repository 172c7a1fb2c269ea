// Which processor a rank computes on, what a model draws there, and how batches get there while the rank still computes
// with the one before.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <narrowcast/model.h>
#include <narrowcast/worker_env.h>
#include "trainer/train/checkpoint/manifest.h"
#include "trainer/train/data/dataset.h"

namespace narrowcast::training {

// GPUs that this process can use: 0 where there is no driver, and in a build without CUDA.
int64_t gpu_count();

// The device that `name` means for this process:
//   "cpu"     the CPU
//   "cuda"    the GPU whose number is the local rank
//   "cuda:N"  GPU N, for every rank that says so; several ranks can share one
//   "auto"    as "cuda" if this node has a GPU for each of its ranks, else the CPU
// Throws c10::ValueError for another name, and where that GPU is not there.
at::Device choose_device(const std::string& name, const WorkerEnv& env);

// The process group's backend for tensors on `device`: `name` if it is one that moves them, for "auto" "nccl" on a GPU
// and "gloo" on the CPU. Throws c10::ValueError if the two contradict each other.
std::string choose_backend(const std::string& name, at::Device device);

// Waits for all that was enqueued on `device`. Nothing to do for the CPU.
void wait_for_device(at::Device device);

// Makes `device` the one that this thread's CUDA calls mean where they name none. Nothing to do for the CPU.
void use_device(at::Device device);

// The batch with its tensors on `device`; itself if they are there.
models::Batch on_device(const models::Batch& batch, at::Device device);

// LibTorch's generators that a model on `device` draws from, and their states, by their names in a checkpoint:
// "generator.cpu", with a GPU also "generator.cuda".
std::map<std::string, at::Generator> generators_for(at::Device device);
checkpoint::TensorMap states_of_generators(at::Device device);

// Calls `run`, which may let the model compute as in training, and then makes the model's buffers and LibTorch's
// generators what they were: passes on trial leave nothing behind, and one after the other compute the same.
void on_trial(const torch::nn::Module& model, const std::function<void()>& run);

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
