// Measures the cost of a hook's all-reduce on the present network and machines, with buckets that need no model.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <vector>

#include <narrowcast/comm_hook.h>
#include <narrowcast/export.h>

namespace narrowcast::hooks {

// The buckets of one step, as a Reducer would pass them. Each holds one parameter, a matrix that is as square as its
// size allows. All hold the same gradients.
class GradientBuckets {
 public:
  // `count` buckets of `numel` float32 elements on `device`, not filled yet. The gradients are normal numbers of mean 0
  // and standard deviation 0.001, the same on all devices. `seed` may differ between ranks.
  GradientBuckets(int64_t numel, int64_t count, uint64_t seed, at::Device device = at::kCPU);

  // The gradients for each bucket, float32 [numel].
  const at::Tensor& gradients() const { return gradients_; }

  // The current content of bucket i, float32 [numel].
  const at::Tensor& buffer(size_t i) const { return buffers_[i]; }

  // Copies the gradients into all buckets.
  void fill() const;

  // Passes all buckets to the hook and waits for all results. As the Reducer does, it copies a result that is not the
  // bucket's own tensor into the bucket. On a GPU the current stream waits, not the host. Throws the hook's exceptions.
  void average(CommHook& hook) const;

 private:
  c10d::GradBucket bucket(size_t i) const;

  at::Tensor gradients_;
  std::vector<at::Tensor> buffers_;
  std::vector<at::Tensor> parameters_;
};

// The time to average a float32 bucket over the ranks, as a line: a constant plus a cost per element.
struct ExchangeCost {
  double seconds = 0;              // of each all-reduce, >= 0
  double seconds_per_element = 0;  // >= 0

  // Seconds for a bucket of `numel` elements.
  double of(int64_t numel) const { return seconds + seconds_per_element * static_cast<double>(numel); }
  double operator()(int64_t numel) const { return of(numel); }
};

// Parameters of the measurement, which uses float32 buckets of two sizes.
struct CostMeasurement {
  int64_t small_numel = int64_t{1} << 14;  // elements, >= 1; 64 KiB, dominated by latency
  int64_t large_numel = int64_t{1} << 20;  // > small_numel; 4 MiB
  int64_t iterations = 9;                  // of each size, at most; >= 1
  double seconds = 0.25;                   // > 0; none is begun after this time, but each size is measured once
  at::Device device = at::kCPU;            // of the buckets

  // Those for a device. Links between GPUs are fast: only large buckets show what an element costs.
  static CostMeasurement on(at::Device device);
};

// A collective: averages buckets of both sizes with the hook, one at a time, and returns the same line on all ranks.
// The slowest rank's time counts, and the least of the iterations of a size, because disturbances only add time.
// Between the small and the large size, buckets grow by factors of four, unmeasured: they warm up memory and use up the
// network's burst allowance. If a bucket takes an eighth of the available time twice, it is used as the large size.
//
// On a GPU the times are those of the current stream, between events that enclose the bucket's all-reduce. They include
// the time in which the host enqueues it, if that is longer.
//
// The hook should be made for this measurement: its state and counters change. Its bytes are counted as measuring
// (collectives::measuring_bytes_sent). Throws c10::ValueError for options out of range, c10::DistBackendError if a peer
// fails, and the hook's exceptions.
NARROWCAST_EXPORT ExchangeCost measure_exchange(CommHook& hook, const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                                const CostMeasurement& options = {});

}  // namespace narrowcast::hooks
