// Times of kernels on a GPU with a cold L2 cache: kernels take turns, and the cache is filled with other data before
// each.
#pragma once

#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace narrowcast::bench {

// Throws std::runtime_error with the name of the failed operation.
inline void check_cuda(cudaError_t error, const char* what) {
  if (error != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
}

// Memory of the current device.
class DeviceMemory {
 public:
  explicit DeviceMemory(int64_t bytes) : size_(bytes) {
    void* memory = nullptr;
    check_cuda(cudaMalloc(&memory, static_cast<size_t>(bytes)), "cudaMalloc");
    memory_.reset(memory);
  }
  uint8_t* data() const { return static_cast<uint8_t*>(memory_.get()); }
  int64_t size() const { return size_; }

 private:
  struct Free {
    void operator()(void* memory) const { cudaFree(memory); }
  };
  std::unique_ptr<void, Free> memory_;
  int64_t size_;
};

class Event {
 public:
  Event() { check_cuda(cudaEventCreate(&event_), "cudaEventCreate"); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record() const { check_cuda(cudaEventRecord(event_, nullptr), "cudaEventRecord"); }
  // Seconds from `begin` to this event, once it has happened.
  double seconds_since(const Event& begin) const {
    float milliseconds = 0;
    check_cuda(cudaEventSynchronize(event_), "cudaEventSynchronize");
    check_cuda(cudaEventElapsedTime(&milliseconds, begin.event_, event_), "cudaEventElapsedTime");
    return milliseconds * 1e-3;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

// An operation on the device's default stream, and its times so far.
struct Work {
  std::string name;
  double bytes;                   // Bytes that it has to move.
  std::function<void()> enqueue;  // Must take the CPU less time than the device needs to fill its cache.
  double target = 0;              // The required share of a copy's rate; 0 if none.
  std::vector<double> seconds = {};

  // Bytes per second, from the median of its times.
  double rate() const {
    std::vector<double> times = seconds;
    const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
    std::nth_element(times.begin(), middle, times.end());
    return bytes / *middle;
  }
};

// Lets all operations take turns: two to warm up, then `rounds`.
inline void take_turns(std::vector<Work>& all, int64_t rounds) {
  constexpr int64_t kWarmUp = 2;
  constexpr int64_t kCacheBytes = int64_t{256} << 20;  // More than any GPU's cache.
  const at::Tensor other = at::zeros({kCacheBytes / 4}, at::device(at::kCUDA).dtype(at::kFloat));
  const Event begin;
  const Event end;
  for (int64_t round = 0; round < kWarmUp + rounds; ++round) {
    for (Work& work : all) {
      other.sum();  // Only reads: writes back what others wrote, and leaves nothing to write back.
      begin.record();
      work.enqueue();
      end.record();
      const double seconds = end.seconds_since(begin);
      if (round >= kWarmUp) work.seconds.push_back(seconds);
    }
  }
}

}  // namespace narrowcast::bench
