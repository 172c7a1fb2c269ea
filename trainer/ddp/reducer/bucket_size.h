// Chooses the size of buckets: a pure function of the times at which gradients become ready, which GradientTimes
// measures, and of the time that averaging a bucket takes.
//
// A bucket can be sent when its last gradient is ready and the previous buckets are done; buckets are averaged one
// after the other. Small buckets leave little to send when the backward pass ends, but each bucket adds its latency.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include <narrowcast/gradient_reducer.h>

namespace narrowcast {

// Bytes of a MiB, the unit of bucket sizes.
inline constexpr double kBytesOfMib = 1024.0 * 1024.0;

// The size of buckets, in MiB, while backward passes are measured. It bounds the memory of exchanges.
inline constexpr double kMeasuredBucketMb = 4;

// The largest size that is chosen for ranks that average shards, in MiB. They are to save memory, and each of two
// exchanges in flight has messages of up to a whole bucket.
inline constexpr double kMostMbOfShards = 3;

// Buckets as the Reducer takes them: indices into the list of parameters.
using BucketIndices = std::vector<std::vector<size_t>>;

// One backward pass, parameter by parameter.
struct BackwardPass {
  std::vector<int64_t> numel;         // elements of each gradient
  std::vector<double> ready_seconds;  // from the pass's first gradient to this one, >= 0

  // From the first gradient to the last.
  double seconds() const;
};

// Parameters in the order in which their gradients become ready, given the times; equal times keep the given order.
std::vector<size_t> ready_order(const std::vector<double>& ready_seconds);

// The buckets that a size leads to.
struct SizedBuckets {
  double cap_mb = 0;  // MiB
  BucketIndices buckets;
};

// The candidate sizes for `gradient_bytes` of gradients, in MiB and ascending. They are 1, 2, 3, 6, 12 and the default
// 25 of DdpOptions, as far as they are less than all gradients, and then a size that holds all gradients.
std::vector<double> bucket_sizes(int64_t gradient_bytes);

// Seconds in which a bucket of `numel` elements is averaged: a hooks::ExchangeCost, or a hook's prediction.
using ExchangeSeconds = std::function<double(int64_t numel)>;

// Seconds from the pass's first gradient to the last average, with these buckets.
double seconds_until_averaged(const BucketIndices& buckets, const BackwardPass& pass, const ExchangeSeconds& exchange);

// Chooses the largest candidate whose averages are ready at most 1% later than with the best candidate. Candidates are
// given from small to large. Processor time that the all-reduce takes from the backward pass is the same for every
// size, and so left out.
BucketChoice choose_bucket_size(const std::vector<SizedBuckets>& candidates, const BackwardPass& pass,
                                const ExchangeSeconds& exchange);

}  // namespace narrowcast
