// Which processor a rank computes on.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>

#include <narrowcast/worker_env.h>

namespace narrowcast {

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

}  // namespace narrowcast
