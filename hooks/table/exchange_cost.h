// What an exchange takes: of a hook, on the network and the machines that it runs on. And the buckets, without a model,
// with which that is measured.
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

// The buckets of one step, as a Reducer would hand them out: each holds one parameter, a matrix that is
// as square as its size allows, and all hold the same gradients.
class GradientBuckets {
 public:
  // `count` buckets of `numel` float32 elements on `device`, not filled yet. The gradients are normal numbers of mean 0
  // and standard deviation 0.001, the same on all devices, drawn with `seed`, which ranks choose each their own.
  GradientBuckets(int64_t numel, int64_t count, uint64_t seed, at::Device device = at::kCPU);

  // What each bucket is filled with, float32 [numel].
  const at::Tensor& gradients() const { return gradients_; }

  // What bucket i holds at present, float32 [numel].
  const at::Tensor& buffer(size_t i) const { return buffers_[i]; }

  // Puts the gradients into all buckets.
  void fill() const;

  // Hands out all buckets to the hook, waits for all results and, as the Reducer does, copies those that are not the
  // bucket itself into it. On a GPU its current stream waits, not the host. Throws what the hook throws.
  void average(CommHook& hook) const;

 private:
  c10d::GradBucket bucket(size_t i) const;

  at::Tensor gradients_;
  std::vector<at::Tensor> buffers_;
  std::vector<at::Tensor> parameters_;
};

// The time in which a float32 bucket is averaged over the ranks, as a line: what every exchange takes, and what each
// element adds.
struct ExchangeCost {
  double seconds = 0;              // of each exchange, >= 0
  double seconds_per_element = 0;  // >= 0

  // What a bucket of so many elements takes, in seconds.
  double of(int64_t numel) const { return seconds + seconds_per_element * static_cast<double>(numel); }
  double operator()(int64_t numel) const { return of(numel); }
};

// How an exchange is measured: float32 buckets on the CPU of two sizes.
struct CostMeasurement {
  int64_t small_numel = int64_t{1} << 14;  // elements, >= 1; 64 KiB, of which latency is the most
  int64_t large_numel = int64_t{1} << 20;  // > small_numel; 4 MiB
  int64_t iterations = 9;                  // of each size, at most; >= 1
  double seconds = 0.25;                   // after which no more are begun, > 0; at least one of each size is measured
};

// A collective: averages buckets of both sizes with the hook, one at a time, and returns the same line on all ranks.
// The slowest rank's time counts, the least of the iterations of a size: what disturbs a machine only adds. On the way
// from the small size to the large one buckets grow by factors of four, unmeasured: they warm up memory, and use up
// what a network lets pass at once. Where one of them takes an eighth of the time that there is, twice, it is large
// enough.
//
// The hook is one made for this: its state and counters change. What it sends is counted as measuring
// (collectives::measuring_bytes_sent). Throws c10::ValueError for options out of range,
// c10::DistBackendError if a peer fails, and what the hook throws.
NARROWCAST_EXPORT ExchangeCost measure_exchange(CommHook& hook, const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                                const CostMeasurement& options = {});

}  // namespace narrowcast::hooks
